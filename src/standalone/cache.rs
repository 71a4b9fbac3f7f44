//! Executables of past calls: least recently used goes first.

use crate::exec::Executable;
use crate::Result;
use std::sync::{Arc, Mutex, OnceLock};

/// Executables kept. A training step uses a handful of shapes; 64 holds several models.
pub(super) const CAPACITY: usize = 64;

/// Most recently used last.
pub(super) struct Cache<K> {
    entries: Mutex<Vec<(K, Slot)>>,
}

/// Filled once, outside the table's lock: threads that ask for the same shape at once compile it once (field report 118), and threads
/// with other shapes do not wait.
type Slot = Arc<OnceLock<Result<Arc<Executable>>>>;

impl<K: PartialEq> Cache<K> {
    pub const fn new() -> Cache<K> {
        Cache { entries: Mutex::new(Vec::new()) }
    }

    /// The executable of this key, made now if it is not kept. Failures are not kept.
    pub fn get(&self, key: K, make: impl FnOnce() -> Result<Executable>) -> Result<Arc<Executable>> {
        let slot = {
            // A panic elsewhere cannot leave the vector half-changed, so a poisoned lock is still good.
            let mut entries = self.entries.lock().unwrap_or_else(|e| e.into_inner());
            let entry = match entries.iter().position(|(k, _)| *k == key) {
                Some(i) => entries.remove(i),
                None => (key, Slot::default()),
            };
            if entries.len() == CAPACITY {
                entries.remove(0);
            }
            let slot = Arc::clone(&entry.1);
            entries.push(entry);
            slot
        };
        let result = slot.get_or_init(|| make().map(Arc::new)).clone();
        if result.is_err() {
            let mut entries = self.entries.lock().unwrap_or_else(|e| e.into_inner());
            entries.retain(|(_, s)| !Arc::ptr_eq(s, &slot));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, GraphOptions, Sdpa, Tensor};
    use crate::{Device, Error, ErrorCode};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn executable() -> Result<Executable> {
        let mut g = Graph::new(GraphOptions::default());
        let q = g.tensor(Tensor::new("q", [1, 1, 8, 8]));
        let out = g.sdpa(q, q, q, Sdpa::default())?;
        g.output(out.o)?;
        g.build(&Device::describe("cpu")?)?.best()?.compile()
    }

    #[test]
    fn the_least_recently_used_key_goes_first() {
        let cache = Cache::new();
        let made = AtomicUsize::new(0);
        let get = |k: usize| {
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                executable()
            };
            cache.get(k, make).unwrap();
        };
        (0..CAPACITY).for_each(&get);
        get(0); // key 1 is now the oldest
        get(CAPACITY);
        assert_eq!(made.load(Ordering::Relaxed), CAPACITY + 1);
        get(0);
        assert_eq!(made.load(Ordering::Relaxed), CAPACITY + 1, "key 0 was kept");
        get(1);
        assert_eq!(made.load(Ordering::Relaxed), CAPACITY + 2, "key 1 was not");
    }

    #[test]
    fn failures_are_not_kept() {
        let cache = Cache::new();
        let fail = || Err(Error::new(ErrorCode::NoPlan, "a", "b"));
        assert!(cache.get(1, fail).is_err());
        assert!(cache.get(1, executable).is_ok());
    }

    #[test]
    fn threads_that_want_the_same_key_make_it_once_field_report_118() {
        for _ in 0..20 {
            let (cache, made) = (Cache::new(), AtomicUsize::new(0));
            std::thread::scope(|s| {
                for t in 0..16 {
                    let (cache, made) = (&cache, &made);
                    s.spawn(move || {
                        let make = || {
                            made.fetch_add(1, Ordering::Relaxed);
                            executable()
                        };
                        cache.get(t % 4, make).unwrap();
                    });
                }
            });
            assert_eq!(made.load(Ordering::Relaxed), 4);
        }
    }
}
