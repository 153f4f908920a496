//! A cache of projections: what the watches brought, reduced to the fields that decisions depend on.
//!
//! One object of each kind per workspace, so the workspace is the key. The operator's own writes are put in at once with what
//! the API server answered, so the next decision never rests on a state the operator itself has left behind; events older than
//! what is held are ignored, and so are answers that the watch has overtaken.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Names a workspace, and with it all its objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl std::fmt::Display for WorkspaceKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// One object as it was seen.
#[derive(Debug)]
pub struct Entry<V> {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`; a decimal number that grows within a kind (promised by the API since 1.35, true before).
    pub version: u64,
    /// The projection.
    pub value: Arc<V>,
}

impl<V> Clone for Entry<V> {
    fn clone(&self) -> Self {
        Self { uid: self.uid.clone(), version: self.version, value: Arc::clone(&self.value) }
    }
}

#[derive(Debug)]
struct State<V> {
    objects: HashMap<WorkspaceKey, Entry<V>>,
    /// A list that is being read; it becomes `objects` at its end.
    staged: Option<HashMap<WorkspaceKey, Entry<V>>>,
    /// Written by us since `staged` began: the list may have been taken before.
    written_since: HashSet<WorkspaceKey>,
    /// The newest version the watch brought. Events of one kind come in order, so everything up to it is in `objects`.
    seen: u64,
    /// Keys of which any newer state asks for a decision.
    awaited: HashSet<WorkspaceKey>,
    /// Versions of our last writes that the cache must reach before a pod is created or deleted.
    own_writes: HashMap<WorkspaceKey, u64>,
}

/// Projections of one kind.
#[derive(Debug)]
pub struct Cache<V> {
    state: Mutex<State<V>>,
    same: fn(&V, &V) -> bool,
}

impl<V> Cache<V> {
    /// `same` tells whether two states of one object ask for the same decision: then no reconcile follows.
    pub fn new(same: fn(&V, &V) -> bool) -> Self {
        let state = State {
            objects: HashMap::new(),
            staged: None,
            written_since: HashSet::new(),
            seen: 0,
            awaited: HashSet::new(),
            own_writes: HashMap::new(),
        };
        Self { state: Mutex::new(state), same }
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held for a workspace.
    pub fn get(&self, key: &WorkspaceKey) -> Option<Entry<V>> {
        self.lock().objects.get(key).cloned()
    }

    /// Calls `each` for every entry, for counting.
    pub fn for_each(&self, mut each: impl FnMut(&WorkspaceKey, &V)) {
        for (key, entry) in &self.lock().objects {
            each(key, &entry.value);
        }
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True while the cache is older than the operator's own last write.
    pub fn own_write_pending(&self, key: &WorkspaceKey) -> bool {
        let state = self.lock();
        state
            .own_writes
            .get(key)
            .is_some_and(|version| state.objects.get(key).is_none_or(|entry| entry.version < *version))
    }

    /// Any state newer than `version` is to ask for a decision, once. False when one is held already.
    pub fn await_newer(&self, key: &WorkspaceKey, version: u64) -> bool {
        let mut state = self.lock();
        if state.objects.get(key).is_none_or(|held| held.version != version) {
            return false;
        }
        state.awaited.insert(key.clone());
        true
    }

    /// Puts in what the API server answered to our own write, unless the watch was faster: it may have gone on, up to the
    /// deletion of the object.
    pub fn wrote(&self, key: &WorkspaceKey, entry: Entry<V>) {
        let mut state = self.lock();
        if entry.version <= state.seen {
            return;
        }
        state.own_writes.insert(key.clone(), entry.version);
        if state.staged.is_some() {
            state.written_since.insert(key.clone());
        }
        if state.objects.get(key).is_none_or(|held| held.version < entry.version) {
            state.objects.insert(key.clone(), entry);
        }
    }

    /// The object with this UID was deleted by us and is gone at once.
    pub fn gone(&self, key: &WorkspaceKey, uid: &str) {
        let mut state = self.lock();
        if state.objects.get(key).is_some_and(|held| held.uid == uid) {
            state.objects.remove(key);
            state.own_writes.remove(key);
        }
    }

    /// A changed or new object from the watch. True when it asks for a new decision.
    pub fn applied(&self, key: &WorkspaceKey, entry: Entry<V>) -> bool {
        let mut state = self.lock();
        state.seen = state.seen.max(entry.version);
        let changed = match state.objects.get(key) {
            Some(held) if held.version >= entry.version => return false,
            Some(held) => held.uid != entry.uid || !(self.same)(&held.value, &entry.value),
            None => true,
        };
        let differs = state.awaited.remove(key) || changed;
        if state.own_writes.get(key).is_some_and(|version| *version <= entry.version) {
            state.own_writes.remove(key);
        }
        state.objects.insert(key.clone(), entry);
        differs
    }

    /// A deleted object from the watch; `version` is that of the deletion. True when it asks for a new decision.
    pub fn deleted(&self, key: &WorkspaceKey, version: u64) -> bool {
        let mut state = self.lock();
        state.seen = state.seen.max(version);
        state.awaited.remove(key);
        if state.objects.get(key).is_some_and(|held| held.version > version) {
            return false;
        }
        if state.own_writes.get(key).is_some_and(|own| *own <= version) {
            state.own_writes.remove(key);
        }
        state.objects.remove(key).is_some()
    }

    /// The watch starts over with a list.
    pub fn list_began(&self) {
        let mut state = self.lock();
        state.staged = Some(HashMap::new());
        state.written_since.clear();
    }

    /// An object of that list.
    pub fn listed(&self, key: WorkspaceKey, entry: Entry<V>) {
        if let Some(staged) = &mut self.lock().staged {
            staged.insert(key, entry);
        }
    }

    /// The list is complete: keys whose state differs from before, those that vanished unseen included.
    pub fn list_ended(&self) -> Vec<WorkspaceKey> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(mut fresh) = state.staged.take() else { return Vec::new() };
        for key in state.written_since.drain() {
            // The list may have been taken before our write; the events that follow the list settle it.
            let newer = match (state.objects.get(&key), fresh.get(&key)) {
                (Some(held), Some(listed)) => held.version > listed.version,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if newer && let Some(held) = state.objects.get(&key) {
                fresh.insert(key, held.clone());
            }
        }
        let mut changed: Vec<WorkspaceKey> = fresh
            .iter()
            .filter(|(key, entry)| match state.objects.get(*key) {
                Some(held) => {
                    held.uid != entry.uid
                        || !(self.same)(&held.value, &entry.value)
                        || (state.awaited.contains(*key) && held.version != entry.version)
                }
                None => true,
            })
            .map(|(key, _)| key.clone())
            .collect();
        changed.extend(state.objects.keys().filter(|key| !fresh.contains_key(*key)).cloned());
        state.own_writes.retain(|key, version| fresh.get(key).is_some_and(|entry| entry.version < *version));
        state.seen = fresh.values().map(|entry| entry.version).fold(state.seen, u64::max);
        for key in &changed {
            state.awaited.remove(key);
        }
        state.objects = fresh;
        changed.sort();
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> WorkspaceKey {
        WorkspaceKey { namespace: "team-a".to_owned(), name: name.to_owned() }
    }

    fn entry(uid: &str, version: u64, value: &'static str) -> Entry<&'static str> {
        Entry { uid: uid.to_owned(), version, value: Arc::new(value) }
    }

    fn cache() -> Cache<&'static str> {
        Cache::new(|old, new| old == new)
    }

    fn value(cache: &Cache<&'static str>, name: &str) -> Option<&'static str> {
        cache.get(&key(name)).map(|entry| *entry.value)
    }

    #[test]
    fn an_event_asks_for_a_decision_only_when_the_projection_or_the_object_changed() {
        let cache = cache();
        assert!(cache.applied(&key("a"), entry("1", 5, "pending")));
        assert!(!cache.applied(&key("a"), entry("1", 6, "pending")));
        assert!(cache.applied(&key("a"), entry("1", 7, "ready")));
        assert!(cache.applied(&key("a"), entry("2", 9, "ready")));
        assert!(cache.deleted(&key("a"), 10));
        assert!(!cache.deleted(&key("a"), 10));
    }

    #[test]
    fn the_event_of_an_own_write_asks_for_nothing_and_older_events_do_not_undo_it() {
        let cache = cache();
        assert!(cache.applied(&key("a"), entry("1", 5, "old")));
        cache.wrote(&key("a"), entry("1", 8, "new"));
        assert!(!cache.applied(&key("a"), entry("1", 6, "between")));
        assert_eq!(value(&cache, "a"), Some("new"));
        assert!(!cache.applied(&key("a"), entry("1", 8, "new")));
    }

    #[test]
    fn the_late_deletion_of_a_former_object_does_not_remove_the_one_just_created() {
        let cache = cache();
        cache.applied(&key("a"), entry("1", 5, "former"));
        cache.wrote(&key("a"), entry("2", 9, "created"));
        assert!(!cache.deleted(&key("a"), 7));
        assert_eq!(value(&cache, "a"), Some("created"));
        assert!(cache.deleted(&key("a"), 12));
    }

    #[test]
    fn an_answer_that_the_watch_has_overtaken_does_not_bring_back_what_is_gone() {
        let cache = cache();
        cache.applied(&key("a"), entry("1", 5, "running"));
        assert!(cache.deleted(&key("a"), 8));
        cache.wrote(&key("a"), entry("1", 8, "deleting"));
        assert_eq!(value(&cache, "a"), None);
        assert!(!cache.own_write_pending(&key("a")));
    }

    #[test]
    fn an_awaited_change_asks_for_a_decision_whatever_it_is_and_once() {
        let cache = cache();
        cache.applied(&key("a"), entry("1", 5, "same"));
        assert!(!cache.await_newer(&key("a"), 4), "a newer state is held already");
        assert!(cache.await_newer(&key("a"), 5));
        assert!(cache.applied(&key("a"), entry("1", 6, "same")));
        assert!(!cache.applied(&key("a"), entry("1", 7, "same")));
    }

    #[test]
    fn a_list_reports_what_appeared_changed_and_vanished() {
        let cache = cache();
        for name in ["same", "changed", "vanished"] {
            cache.applied(&key(name), entry(name, 1, "old"));
        }
        cache.list_began();
        cache.listed(key("same"), entry("same", 2, "old"));
        cache.listed(key("changed"), entry("changed", 3, "new"));
        cache.listed(key("appeared"), entry("appeared", 4, "new"));
        assert_eq!(cache.list_ended(), [key("appeared"), key("changed"), key("vanished")]);
        assert_eq!(cache.len(), 3);
    }

    #[test]
    fn a_list_taken_before_an_own_write_does_not_hide_that_write() {
        let cache = cache();
        cache.list_began();
        cache.wrote(&key("a"), entry("1", 9, "created"));
        assert_eq!(cache.list_ended(), Vec::new());
        assert_eq!(value(&cache, "a"), Some("created"));
        assert!(!cache.own_write_pending(&key("a")));
    }

    #[test]
    fn an_own_write_is_pending_while_the_cache_is_older() {
        let cache = cache();
        cache.applied(&key("a"), entry("1", 5, "old"));
        cache.lock().own_writes.insert(key("a"), 8);
        assert!(cache.own_write_pending(&key("a")));
        cache.applied(&key("a"), entry("1", 8, "new"));
        assert!(!cache.own_write_pending(&key("a")));
    }
}
