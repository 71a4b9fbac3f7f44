use super::*;
use crate::runtime::test_util::{image, spec};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn header(entry: &'static str) -> Header {
    Header::new(&spec(entry), "sm_90a", "13.0", "digest", &options(&spec(entry), "sm_90a"))
}

fn compiled(entry: &'static str, code: &[u8]) -> Result<Cubin> {
    Cubin::new(&spec(entry), "sm_90a", "13.0", image(entry, &[(0, 8)], code), "log")
}

fn get(cache: &CubinCache, entry: &'static str, compilations: &AtomicUsize) -> Result<Arc<Cubin>> {
    cache.get_or_compile(header(entry), &spec(entry), || {
        compilations.fetch_add(1, Ordering::SeqCst);
        compiled(entry, b"code")
    })
}

fn folder() -> (tempfile::TempDir, CubinCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = CubinCache::new(Some(dir.path().to_path_buf()), DEFAULT_MAX_BYTES);
    (dir, cache)
}

#[test]
fn the_folder_does_not_follow_the_working_directory() {
    let dir = |pairs: &[(&str, &str)]| dir_by(|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.into()));
    let (xdg, home, own) = ("XDG_CACHE_HOME", "HOME", "FROSTGRAPH_CACHE_DIR");
    assert_eq!(dir(&[(xdg, "/x"), (home, "/h")]), Some("/x/frostgraph".into()));
    assert_eq!(dir(&[(xdg, "x"), (home, "/h")]), Some("/h/.cache/frostgraph".into()));
    assert_eq!(dir(&[(xdg, ""), (home, "")]), None);
    assert_eq!(dir(&[(xdg, "x"), (home, "h")]), None);
    assert_eq!(dir(&[(own, "here"), (home, "/h")]), Some("here".into()), "what is asked for is taken");
}

fn entry_file(dir: &Path, entry: &'static str) -> PathBuf {
    dir.join(format!("{}.{}", header(entry).key(), entry::EXTENSION))
}

#[test]
fn a_second_process_would_find_the_same_cubin() {
    let (dir, first) = folder();
    let n = AtomicUsize::new(0);
    let cold = get(&first, "k", &n).unwrap();
    let second = CubinCache::new(Some(dir.path().to_path_buf()), DEFAULT_MAX_BYTES);
    let warm = get(&second, "k", &n).unwrap();
    assert_eq!((cold, n.load(Ordering::SeqCst)), (warm, 1));
}

/// Corrupt, truncated, empty and foreign entries are misses, and are replaced by good ones.
#[test]
fn unusable_entries_are_misses_and_are_replaced() {
    let (dir, cache) = folder();
    let n = AtomicUsize::new(0);
    get(&cache, "k", &n).unwrap();
    get(&cache, "other", &n).unwrap();
    let file = entry_file(dir.path(), "k");
    let good = std::fs::read(&file).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let foreign = std::fs::read(entry_file(dir.path(), "other")).unwrap();
    let other_version = [b"FGCUBIN\x02", &good[8..]].concat();
    for bad in [flipped, good[..good.len() / 2].to_vec(), Vec::new(), b"hello".to_vec(), foreign, other_version] {
        std::fs::write(&file, bad).unwrap();
        let before = n.load(Ordering::SeqCst);
        let fresh = CubinCache::new(Some(dir.path().to_path_buf()), DEFAULT_MAX_BYTES);
        get(&fresh, "k", &n).unwrap();
        assert_eq!(n.load(Ordering::SeqCst), before + 1);
        assert_eq!(std::fs::read(&file).unwrap(), good);
    }
}

/// Report 118: 64 threads want the same four kernels at once; four compilations.
#[test]
fn threads_share_one_compilation_per_key_118() {
    let cache = CubinCache::new(None, DEFAULT_MAX_BYTES);
    let n = AtomicUsize::new(0);
    let gate = std::sync::Barrier::new(64);
    std::thread::scope(|s| {
        for i in 0..64 {
            let (cache, n, gate) = (&cache, &n, &gate);
            s.spawn(move || {
                gate.wait();
                for k in 0..4 {
                    get(cache, ["a", "b", "c", "d"][(i + k) % 4], n).unwrap();
                }
            });
        }
    });
    assert_eq!(n.load(Ordering::SeqCst), 4);
}

#[test]
fn a_failure_is_not_kept() {
    let (_dir, cache) = folder();
    let fail = cache.get_or_compile(header("k"), &spec("k"), || Err(Error::new(ErrorCode::Nvrtc, "no", "yes")));
    assert_eq!(fail.unwrap_err().code, ErrorCode::Nvrtc);
    get(&cache, "k", &AtomicUsize::new(0)).unwrap();
}

/// The least recently *used* entry goes, not the oldest one; the entry just written stays.
#[test]
fn pruning_drops_what_was_used_longest_ago() {
    let (dir, cache) = folder();
    let n = AtomicUsize::new(0);
    let age = |entry, secs| {
        let file = std::fs::File::options().append(true).open(entry_file(dir.path(), entry)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(secs)).unwrap();
    };
    for (entry, secs) in [("a", 300), ("b", 200), ("c", 100)] {
        get(&cache, entry, &n).unwrap();
        age(entry, secs);
    }
    std::fs::write(dir.path().join("fg-1-0-0.tmp"), b"left by a killed writer").unwrap();
    std::fs::File::options()
        .append(true)
        .open(dir.path().join("fg-1-0-0.tmp"))
        .and_then(|f| f.set_modified(std::time::SystemTime::now() - Duration::from_secs(7200)))
        .unwrap();
    std::fs::write(dir.path().join("notes.txt"), b"the user's").unwrap();
    let one = std::fs::metadata(entry_file(dir.path(), "a")).unwrap().len();
    let small = CubinCache::new(Some(dir.path().to_path_buf()), 3 * one + one / 2);
    get(&small, "a", &n).unwrap();
    assert_eq!(n.load(Ordering::SeqCst), 3, "a was a hit, which makes it recent");
    get(&small, "d", &n).unwrap();
    let left: Vec<bool> = ["a", "b", "c", "d"].iter().map(|e| entry_file(dir.path(), e).exists()).collect();
    assert_eq!(left, [true, false, true, true]);
    assert!(!dir.path().join("fg-1-0-0.tmp").exists() && dir.path().join("notes.txt").exists());
}

/// A folder that cannot be made (a file lies in the way) does not stop anything.
#[test]
fn an_unwritable_folder_is_done_without() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cache = CubinCache::new(Some(file.path().join("sub")), DEFAULT_MAX_BYTES);
    let n = AtomicUsize::new(0);
    get(&cache, "k", &n).unwrap();
    get(&cache, "k", &n).unwrap();
    assert_eq!(n.load(Ordering::SeqCst), 1, "memory still serves");
    assert_eq!(std::fs::read(file.path()).unwrap(), b"");
}

#[test]
fn list_verify_and_clear() {
    let (dir, cache) = folder();
    let n = AtomicUsize::new(0);
    assert_eq!(cache.list().unwrap(), []);
    get(&cache, "a", &n).unwrap();
    get(&cache, "b", &n).unwrap();
    std::fs::write(entry_file(dir.path(), "c"), b"junk").unwrap();
    std::fs::copy(entry_file(dir.path(), "a"), entry_file(dir.path(), "d")).unwrap();
    std::fs::write(dir.path().join("notes.txt"), b"the user's").unwrap();
    assert_eq!(cache.list().unwrap().len(), 4);
    let (good, bad) = cache.verify().unwrap();
    let kernels: Vec<String> = good.into_iter().map(|e| e.contents.unwrap().kernel).collect();
    assert_eq!(kernels.len(), 2);
    assert!(kernels.contains(&"kernels/test/k.cu:a for sm_90a".to_owned()), "{kernels:?}");
    let mut why: Vec<String> = bad.into_iter().map(|e| e.contents.unwrap_err()).collect();
    why.sort();
    assert_eq!(why, ["the name is not the key of the contents", "truncated"]);
    assert_eq!(cache.clear().unwrap().len(), 2);
    assert_eq!(cache.list().unwrap(), []);
    assert!(dir.path().join("notes.txt").exists(), "only our files go");
    let blocked = CubinCache::new(Some(dir.path().join("notes.txt")), 1);
    assert_eq!(blocked.list().unwrap_err().code, ErrorCode::CubinCache);
}

const DIR: &str = "FROSTGRAPH_TEST_CACHE_DIR";

/// Run by the two tests below in processes of their own.
#[test]
#[ignore = "a child process of the tests below"]
fn child_process() {
    let dir = PathBuf::from(std::env::var_os(DIR).expect("started by its parent test"));
    let cache = CubinCache::new(Some(dir.join("cache")), DEFAULT_MAX_BYTES);
    let hang = dir.join("hang");
    for entry in ["a", "b", "c", "d"] {
        let cubin = cache.get_or_compile(header(entry), &spec(entry), || {
            if hang.exists() {
                std::fs::write(dir.join("ready"), b"").unwrap();
                std::thread::sleep(Duration::from_secs(600));
            }
            std::thread::sleep(Duration::from_millis(20));
            compiled(entry, b"code")
        });
        assert_eq!(*cubin.unwrap(), compiled(entry, b"code").unwrap());
    }
}

fn child(dir: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "runtime::cubin_cache::tests::child_process"])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn sixteen_processes_on_a_cold_cache() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..16).map(|_| child(dir.path())).collect();
    for mut c in children {
        assert!(c.wait().unwrap().success());
    }
    let cache = CubinCache::new(Some(dir.path().join("cache")), DEFAULT_MAX_BYTES);
    let (good, bad) = cache.verify().unwrap();
    assert_eq!((good.len(), bad.len()), (4, 0));
    assert_eq!(files_of(&dir.path().join("cache")).len(), 4, "no temporary file is left");
}

/// Report 115: a process killed in the middle of a compilation leaves nothing that others wait for.
#[test]
fn a_killed_holder_blocks_nobody_115() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hang"), b"").unwrap();
    let mut holder = child(dir.path());
    while !dir.path().join("ready").exists() {
        assert_eq!(holder.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(5));
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    std::fs::remove_file(dir.path().join("hang")).unwrap();
    let start = Instant::now();
    assert!(child(dir.path()).wait().unwrap().success());
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}
