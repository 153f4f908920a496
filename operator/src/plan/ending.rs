//! Waiting for a pod to be gone: how long, and what to say when it does not go.

use jiff::Timestamp;

use crate::crd::Reason;

use super::{LookUp, NodeState, Observed, PodView, status::after};

/// A pod whose grace period is over ends within a second or two; a busy node needs longer.
const OVERDUE_SECONDS: i64 = 60;
/// The node of a pod that does not end is looked at this often.
const NODE_LOOK_SECONDS: i64 = 300;

/// Whether a pod that is being deleted should have been gone.
pub(super) enum Overdue {
    /// It should; what to say of it, and when to look at its node again.
    Since { reason: Reason, message: String, again: Timestamp },
    /// Not before this time, when that is known.
    From(Option<Timestamp>),
}

/// A pod is never deleted by force: its node may still run it, and two pods would write to one volume. So the wait has no
/// end, and a person must hear of it.
pub(super) fn overdue(observed: &Observed, pod: &PodView, now: Timestamp) -> Result<Overdue, LookUp> {
    let Some(gone_by) = pod.gone_by else { return Ok(Overdue::From(None)) };
    let from = after(gone_by, OVERDUE_SECONDS);
    if now < from {
        return Ok(Overdue::From(Some(from)));
    }
    let again = after(now, NODE_LOOK_SECONDS);
    let Some(name) = &pod.node_name else {
        let message = format!("the pod should have been gone at {gone_by}: a finalizer holds it; remove the finalizer");
        return Ok(Overdue::Since { reason: Reason::PodTerminating, message, again });
    };
    let (reason, message) = match observed.node {
        None => return Err(LookUp::Node { name: name.clone() }),
        Some(NodeState::Ready) => (
            Reason::PodTerminating,
            format!(
                "the pod should have been gone at {gone_by}: node {name} does not report its end, or a finalizer holds it; look at the node, or remove the finalizer"
            ),
        ),
        Some(NodeState::NotReady) => (
            Reason::NodeLost,
            format!(
                "node {name} is not ready and cannot end the pod, which should have been gone at {gone_by}; repair the node, or, when it is surely off, kubectl taint nodes {name} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
            ),
        ),
        Some(NodeState::Gone) => (
            Reason::NodeLost,
            format!("node {name} does not exist any more; the cluster removes its pods within minutes"),
        ),
    };
    Ok(Overdue::Since { reason, message, again })
}
