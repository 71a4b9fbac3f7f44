//! Reading files that may have no end, and writing files: whole or not at all, and into what the path leads to.

use crate::{Error, ErrorCode, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the longest text that is read: a graph of ten thousand nodes takes ten million.
const LONGEST_TEXT: u64 = 256 << 20;

/// All bytes up to the end, which must come before more than `most` of them: a device or a pipe may have none.
pub(crate) fn read_within(from: impl Read, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(std::io::Error::other(format!("more than {most} bytes"))),
        false => Ok(bytes),
    }
}

/// A text up to its end.
///
/// Errors: FG5001, with `expected`, where it cannot be read, is no UTF-8, or does not end within 256 MiB.
pub fn read_text(from: impl Read, expected: &str) -> Result<String> {
    let text = read_within(from, LONGEST_TEXT).and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    text.map_err(|e| Error::new(ErrorCode::FileRead, e.to_string(), expected))
}

/// [`read_text`] of a file; errors name it.
pub fn read_text_file(path: &Path, expected: &str) -> Result<String> {
    let opened = File::open(path).map_err(|e| Error::new(ErrorCode::FileRead, e.to_string(), expected));
    opened.and_then(|file| read_text(file, expected)).map_err(|e| e.at(path.display().to_string()))
}

/// Where the bytes of a path go.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    /// A regular file, there or not yet: written beside, then renamed into place.
    Regular(PathBuf),
    /// A pipe, a terminal, a device, or a link to what is not there: written to as it is. A rename would put a file in its place.
    Other,
}

/// Follows links, so that a link stays one and its target changes.
fn target(path: &Path) -> std::io::Result<Target> {
    if path.file_name().is_none() || path.is_dir() {
        return Err(std::io::Error::other("a directory"));
    }
    match (std::fs::canonicalize(path), std::fs::symlink_metadata(path)) {
        (Ok(real), _) if std::fs::metadata(&real)?.is_file() => Ok(Target::Regular(real)),
        (Ok(_), _) | (Err(_), Ok(_)) => Ok(Target::Other),
        (Err(_), Err(_)) => match folder(path).is_dir() {
            true => Ok(Target::Regular(path.to_path_buf())),
            false => Err(std::io::Error::other("a directory that does not exist")),
        },
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        Some(_) | None => Path::new("."),
    }
}

/// A new file beside the target. Its name is unique in this process and, through the pid, on this machine; across machines that share a
/// folder `create_new` refuses a clash. It is short: a target's name may be as long as the file system allows.
fn beside(path: &Path) -> std::io::Result<(PathBuf, File)> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    let name = format!("fg-{}-{}-{nanos}.tmp", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    let path = folder(path).join(name);
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    Ok((path, file))
}

/// Replaces or makes a regular file: written beside, flushed to disk, renamed. Readers see the old contents or the new ones; after a fault
/// the old ones stand and nothing is left behind. An existing file's permissions are kept.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let (temp, mut file) = beside(path)?;
    let mut write = || {
        file.write_all(bytes)?;
        if let Ok(old) = std::fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.sync_all()?;
        std::fs::rename(&temp, path)
    };
    write().inspect_err(|_| {
        // A failure to remove the part file adds nothing to the first fault.
        let _ = std::fs::remove_file(&temp);
    })
}

fn fault(path: &Path, e: &std::io::Error) -> Error {
    let expected = "a file in a directory that exists and can be written to";
    Error::new(ErrorCode::FileWrite, e.to_string(), expected).at(path.display().to_string())
}

/// Writes a file beside its target, flushes it to disk and renames it into place; a pipe or a device is written to as it is.
///
/// Errors: FG5002. A regular file then has its old contents, and nothing is left beside it.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || match target(path)? {
        Target::Regular(real) => replace(&real, bytes),
        Target::Other => File::create(path)?.write_all(bytes),
    };
    write().map_err(|e: std::io::Error| fault(path, &e))
}

/// Whether [`write_beside`] can be expected to succeed: what can be found out before long work should not be found out after it. Makes a
/// file beside the target and removes it again.
///
/// Errors: FG5002.
pub fn check_writable(path: &Path) -> Result<()> {
    let check = || match target(path)? {
        Target::Regular(real) => beside(&real).and_then(|(temp, _)| std::fs::remove_file(temp)),
        Target::Other => Ok(()),
    };
    check().map_err(|e: std::io::Error| fault(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        all.sort();
        all
    }

    #[test]
    fn files_are_made_and_replaced_and_nothing_is_left_beside() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("n".repeat(255));
        for path in [dir.path().join("a"), long] {
            for bytes in [&b"one"[..], b"two, longer"] {
                check_writable(&path).unwrap();
                write_beside(&path, bytes).unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), bytes);
            }
        }
        assert_eq!(names(dir.path()), ["a".to_owned(), "n".repeat(255)]);
    }

    #[test]
    fn directories_and_missing_ones_are_named_before_and_after_the_work() {
        let dir = tempfile::tempdir().unwrap();
        for (path, what) in [(dir.path().to_path_buf(), "a directory;"), (dir.path().join("no/x"), "does not exist")] {
            for e in [check_writable(&path).unwrap_err(), write_beside(&path, b"x").unwrap_err()] {
                assert!(e.code == ErrorCode::FileWrite && e.to_string().contains(what), "{e}");
            }
        }
        assert!(names(dir.path()).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_permissions_are_kept() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (real, link, dangling) = (dir.path().join("real"), dir.path().join("link"), dir.path().join("dangling"));
        std::fs::write(&real, b"old").unwrap();
        std::fs::set_permissions(&real, PermissionsExt::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::os::unix::fs::symlink(dir.path().join("new"), &dangling).unwrap();
        for (path, to) in [(&link, "real"), (&dangling, "new")] {
            write_beside(path, b"new").unwrap();
            assert!(std::fs::symlink_metadata(path).unwrap().is_symlink());
            assert_eq!(std::fs::read(dir.path().join(to)).unwrap(), b"new");
        }
        assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(dir.path()), ["dangling", "link", "new", "real"]);
    }

    /// A pipe in the place of a device: a rename would replace it by a file, for a device with root's rights for the whole machine.
    #[cfg(unix)]
    #[test]
    fn a_pipe_is_written_to_and_stays_a_pipe() {
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        if !std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|s| s.success()) {
            eprintln!("SKIPPED, NOT TESTED: no mkfifo");
            return;
        }
        check_writable(&pipe).unwrap();
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        write_beside(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(names(dir.path()), ["pipe"]);
    }

    /// What a full disk says is passed on, and the file that was there is still there.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_an_error() {
        use std::os::unix::fs::FileTypeExt;
        let full = Path::new("/dev/full");
        if !std::fs::metadata(full).is_ok_and(|m| m.file_type().is_char_device()) {
            eprintln!("SKIPPED, NOT TESTED: no /dev/full");
            return;
        }
        let e = write_beside(full, b"x").unwrap_err();
        assert!(e.code == ErrorCode::FileWrite && e.to_string().contains("No space left"), "{e}");
        assert!(std::fs::metadata(full).unwrap().file_type().is_char_device());
    }
}
