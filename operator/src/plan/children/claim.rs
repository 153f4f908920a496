//! The claim, and whether one that exists may be used.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};

use crate::{
    crd::{ANNOTATION_OWNER_USER, AccessMode, WhenDeleted},
    plan::{ClaimPhase, ClaimView, StorageClassView, Valid, quantity::Amount, valid::Storage},
};

use super::{hash, labels, metadata, owner, seal};

/// The rendered claim and what it could not carry over from the spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The object to apply.
    pub object: PersistentVolumeClaim,
    /// Hash in its annotation `agents.boring.dev/applied`.
    pub applied: String,
    /// The wanted size is larger, and the storage class does not permit to resize.
    pub resize_unsupported: bool,
}

/// Renders the claim. `None` with ephemeral storage.
///
/// What cannot be changed in an existing claim (class, access modes) is taken from it, so that an apply is never refused
/// for it; the size is never lowered.
pub fn claim(valid: &Valid, existing: Option<&ClaimView>, class: Option<&StorageClassView>) -> Option<Claim> {
    let Storage::Persistent { size, class: wanted_class, access_mode, when_deleted } = &valid.storage else {
        return None;
    };
    let (size, resize_unsupported) = size_to_request(size, existing, class);
    let mut object = PersistentVolumeClaim {
        metadata: metadata(valid, valid.claim_name()),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![access_mode_word(*access_mode).to_owned()]),
            storage_class_name: wanted_class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), size)].into()),
                ..VolumeResourceRequirements::default()
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    object.metadata.labels = Some(labels(&valid.name, &valid.uid));
    object.metadata.owner_references = (*when_deleted == WhenDeleted::Delete).then(|| vec![owner(valid)]);
    if let Some(owner_user) = &valid.owner_user {
        object.metadata.annotations = Some([(ANNOTATION_OWNER_USER.to_owned(), owner_user.clone())].into());
    }
    // Hashed before the existing claim's own values come in: those appear only after the first apply and must not cause a second.
    let applied = hash(&object);
    if let (Some(existing), Some(spec)) = (existing, object.spec.as_mut()) {
        spec.storage_class_name.clone_from(&existing.storage_class_name);
        if !existing.access_modes.is_empty() {
            spec.access_modes = Some(existing.access_modes.clone());
        }
    }
    seal(&mut object.metadata, applied.clone());
    Some(Claim { object, applied, resize_unsupported })
}

fn size_to_request(
    wanted: &Quantity,
    existing: Option<&ClaimView>,
    class: Option<&StorageClassView>,
) -> (Quantity, bool) {
    let requested =
        existing.and_then(|claim| claim.requested.as_deref()).and_then(|text| Some((text, Amount::parse(text)?)));
    let Some((text, requested)) = requested else { return (wanted.clone(), false) };
    // The API server takes a larger request for a bound claim only; it is applied when the claim is bound.
    let unbound = existing.is_some_and(|claim| claim.phase != ClaimPhase::Bound);
    if unbound || Amount::of(wanted) <= Some(requested) {
        return (Quantity(text.to_owned()), false);
    }
    if class.is_some_and(|class| !class.allow_volume_expansion) {
        return (Quantity(text.to_owned()), true);
    }
    (wanted.clone(), false)
}

const fn access_mode_word(mode: AccessMode) -> &'static str {
    match mode {
        AccessMode::ReadWriteOnce => "ReadWriteOnce",
        AccessMode::ReadWriteOncePod => "ReadWriteOncePod",
        AccessMode::ReadWriteMany => "ReadWriteMany",
    }
}
