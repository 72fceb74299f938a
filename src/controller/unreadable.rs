//! Cluster side, without calls: objects that are there and cannot be read as their kind.
//!
//! Such an object is no absent one. While it cannot be read, its last readable state stands in for
//! it, also through a full list; one that never could be read is known by its name. Objects of a
//! newer version of Sluice, after it was set back to an older one, are such.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use tracing::{error, info};

use crate::metrics::{KindLabel, Metrics};
use crate::translate::pod::version;

/// Objects that cannot be read, by namespace (empty where there is none) and name.
pub(super) type Faults = BTreeMap<(String, String), Fault>;

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Its UID.
    pub(super) uid: String,
    /// Its version as a number.
    pub(super) version: u64,
    /// What is wrong with it.
    pub(super) error: String,
}

/// The objects that cannot be read, of every kind.
#[derive(Clone, Default)]
pub(super) struct Unreadable(Arc<Mutex<BTreeMap<&'static str, Faults>>>);

impl Unreadable {
    /// Those of one kind, by its plural.
    pub(super) fn of(&self, kind: &str) -> Faults {
        self.lock().get(kind).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Faults>> {
        // Each change leaves the maps whole, so a panic elsewhere does not spoil them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the events of one kind's watch and hands on what its store can hold.
pub(super) struct Sieve<K: Lookup + Clone + 'static>
where
    K::DynamicType: std::hash::Hash + Eq,
{
    pub(super) kind: &'static str,
    /// What could be read last.
    pub(super) store: Store<K>,
    pub(super) unreadable: Unreadable,
    pub(super) metrics: Metrics,
    /// Found while a list comes in.
    pub(super) listed: Faults,
}

impl<K> Sieve<K>
where
    K: Resource + Lookup<DynamicType = <K as Resource>::DynamicType> + Clone + 'static,
    <K as Resource>::DynamicType: Default + Eq + std::hash::Hash + Clone,
{
    /// The event for the store, if it changes by it.
    pub(super) fn pass(&mut self, event: Event<DeserializeGuard<K>>) -> Option<Event<K>> {
        match event {
            Event::Init => {
                self.listed.clear();
                Some(Event::Init)
            }
            Event::InitApply(DeserializeGuard(Ok(object))) => Some(Event::InitApply(object)),
            Event::InitApply(DeserializeGuard(Err(invalid))) => {
                let (key, fault) = self.fault(&invalid);
                self.listed.insert(key, fault);
                self.last_good(&invalid.metadata).map(Event::InitApply)
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.change(|faults| *faults = listed);
                Some(Event::InitDone)
            }
            Event::Apply(DeserializeGuard(Ok(object))) => {
                self.readable(object.meta());
                Some(Event::Apply(object))
            }
            Event::Apply(DeserializeGuard(Err(invalid))) => {
                let (key, fault) = self.fault(&invalid);
                self.change(|faults| drop(faults.insert(key, fault)));
                None
            }
            Event::Delete(DeserializeGuard(object)) => {
                self.readable(object.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta));
                let last = object.or_else(|invalid| self.last_good(&invalid.metadata).ok_or(()));
                last.ok().map(Event::Delete)
            }
        }
    }

    fn fault(&self, invalid: &InvalidObject) -> ((String, String), Fault) {
        let (key, meta) = (key(&invalid.metadata), &invalid.metadata);
        let fault = Fault {
            uid: meta.uid.clone().unwrap_or_default(),
            version: version(meta.resource_version.as_deref()),
            error: invalid.error.clone(),
        };
        self.metrics.objects_skipped.get_or_create_owned(&KindLabel { kind: self.kind }).inc();
        if self.unreadable.of(self.kind).get(&key) != Some(&fault) {
            let (namespace, name) = &key;
            error!(
                kind = self.kind,
                namespace,
                name,
                error = fault.error,
                "object cannot be read: what it was before stands in for it"
            );
        }
        (key, fault)
    }

    /// The object as it could be read last, if it is the same one.
    fn last_good(&self, meta: &ObjectMeta) -> Option<K> {
        let mut of = ObjectRef::<K>::new(meta.name.as_deref().unwrap_or_default());
        if let Some(namespace) = &meta.namespace {
            of = of.within(namespace);
        }
        let known = self.store.get(&of).filter(|known| known.meta().uid == meta.uid)?;
        Some(K::clone(&known))
    }

    fn readable(&self, meta: &ObjectMeta) {
        let key = key(meta);
        if self.unreadable.of(self.kind).contains_key(&key) {
            info!(kind = self.kind, name = key.1, "object can be read again, or is gone");
            self.change(|faults| drop(faults.remove(&key)));
        }
    }

    fn change(&self, change: impl FnOnce(&mut Faults)) {
        let mut all = self.unreadable.lock();
        let faults = all.entry(self.kind).or_default();
        change(faults);
        let count = i64::try_from(faults.len()).unwrap_or(i64::MAX);
        let label = KindLabel { kind: self.kind };
        self.metrics.objects_unreadable.get_or_create_owned(&label).set(count);
    }
}

fn key(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::serde_json::{from_value, json};
    use kube::ResourceExt as _;
    use kube::runtime::reflector::{self, store::Writer};

    use super::*;
    use crate::api::GpuPool;

    struct Rig {
        sieve: Sieve<GpuPool>,
        writer: Writer<GpuPool>,
    }

    impl Rig {
        fn new() -> Self {
            let (store, writer) = reflector::store();
            let sieve = Sieve {
                kind: "gpupools",
                store,
                unreadable: Unreadable::default(),
                metrics: Metrics::default(),
                listed: Faults::new(),
            };
            Self { sieve, writer }
        }

        fn take(&mut self, event: Event<DeserializeGuard<GpuPool>>) {
            if let Some(event) = self.sieve.pass(event) {
                self.writer.apply_watcher_event(&event);
            }
        }

        /// A whole list.
        fn list(&mut self, pools: Vec<DeserializeGuard<GpuPool>>) {
            self.take(Event::Init);
            for pool in pools {
                self.take(Event::InitApply(pool));
            }
            self.take(Event::InitDone);
        }

        /// Wave sizes of the pools in the store, and names of those that cannot be read.
        fn shows(&self) -> (Vec<(String, Option<i32>)>, Vec<String>) {
            let pools = self.sieve.store.state();
            let mut shown: Vec<_> =
                pools.iter().map(|pool| (pool.name_any(), pool.spec.wave_size)).collect();
            shown.sort();
            let names = self.sieve.unreadable.of("gpupools").into_keys().map(|(_, name)| name);
            let names: Vec<String> = names.collect();
            let label = KindLabel { kind: "gpupools" };
            let gauge = self.sieve.metrics.objects_unreadable.get_or_create_owned(&label);
            assert_eq!(usize::try_from(gauge.get()), Ok(names.len()));
            (shown, names)
        }
    }

    fn pool(name: &str, uid: &str, wave: i32) -> DeserializeGuard<GpuPool> {
        let meta = json!({"name": name, "uid": uid, "resourceVersion": wave.to_string()});
        from_value(json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool",
                          "metadata": meta, "spec": {"waveSize": wave}}))
        .unwrap()
    }

    fn torn(name: &str, uid: &str) -> DeserializeGuard<GpuPool> {
        let guard = from_value(json!({
            "apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool",
            "metadata": {"name": name, "uid": uid, "resourceVersion": "9"},
            "spec": {"waveSize": "many"}}));
        let guard: DeserializeGuard<GpuPool> = guard.unwrap();
        assert!(guard.0.is_err());
        guard
    }

    fn is(name: &str, wave: i32) -> (String, Option<i32>) {
        (name.to_owned(), Some(wave))
    }

    #[test]
    fn what_was_readable_stands_in_through_changes_and_lists() {
        let mut rig = Rig::new();
        rig.list(vec![pool("a", "1", 3), pool("b", "2", 4)]);
        rig.take(Event::Apply(torn("a", "1")));
        assert_eq!(rig.shows(), (vec![is("a", 3), is("b", 4)], vec!["a".to_owned()]));
        rig.list(vec![torn("a", "1"), pool("b", "2", 5)]);
        assert_eq!(rig.shows(), (vec![is("a", 3), is("b", 5)], vec!["a".to_owned()]));
        rig.take(Event::Apply(pool("a", "1", 6)));
        assert_eq!(rig.shows(), (vec![is("a", 6), is("b", 5)], vec![]));
    }

    #[test]
    fn what_is_deleted_or_made_anew_is_no_longer_there() {
        let mut rig = Rig::new();
        rig.list(vec![pool("a", "1", 3), pool("b", "2", 4), torn("c", "3")]);
        assert_eq!(rig.shows(), (vec![is("a", 3), is("b", 4)], vec!["c".to_owned()]));
        rig.take(Event::Delete(torn("a", "1")));
        rig.take(Event::Delete(torn("c", "3")));
        assert_eq!(rig.shows(), (vec![is("b", 4)], vec![]));
        // Another pool of the name is not what could be read once.
        rig.list(vec![torn("b", "other")]);
        assert_eq!(rig.shows(), (vec![], vec!["b".to_owned()]));
        rig.list(vec![]);
        assert_eq!(rig.shows(), (vec![], vec![]));
    }
}
