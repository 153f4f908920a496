//! The keys in use: read by whoever signs or renders a pod, replaced as a whole by the rotation.

use std::sync::{Arc, PoisonError, RwLock};

use super::KeyRing;

/// One set of keys and its public part.
#[derive(Debug)]
pub struct InUse {
    /// The pairs.
    pub ring: KeyRing,
    /// [`KeyRing::public_key_set`], rendered once.
    pub public: String,
}

/// Shared by all parts of one process.
#[derive(Clone, Debug)]
pub struct Signer(Arc<RwLock<Arc<InUse>>>);

impl Signer {
    /// Begins with these keys.
    pub fn new(ring: KeyRing) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(InUse::new(ring)))))
    }

    /// The keys now. One decision uses one answer.
    pub fn keys(&self) -> Arc<InUse> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses other keys from now on.
    pub fn replace(&self, ring: KeyRing) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(InUse::new(ring));
    }
}

impl InUse {
    fn new(ring: KeyRing) -> Self {
        let public = ring.public_key_set();
        Self { ring, public }
    }
}
