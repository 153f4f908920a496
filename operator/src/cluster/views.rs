//! Projections: what of a Kubernetes object a decision depends on, and when two states of it ask for the same one.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, PersistentVolumeClaim, Pod, PodCondition, PodStatus},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource, ResourceExt};

use super::{
    cache::WorkspaceKey,
    ownership::{self, POLICY_FIELDS, POLICY_MANAGER, SERVICE_FIELDS, SERVICE_MANAGER},
};
use crate::{
    crd::{
        ANNOTATION_APPLIED, ANNOTATION_KEYS, ANNOTATION_OWNER_USER, ANNOTATION_REVISION, AgentWorkspace,
        AgentWorkspaceWake, AgentWorkspaceWakeSpec, LABEL_MANAGED_BY, LABEL_WORKSPACE, LABEL_WORKSPACE_UID, MANAGED_BY,
    },
    plan::{
        ClaimPhase, ClaimView, ContainerEnd, ContainerWait, Disruption, ForeignObject, PodPhase, PodStages, PodView,
        Seen, SimpleView, WakeView, child_labels,
    },
};

/// Ends the names of pod, Service and NetworkPolicy.
pub const AGENT_SUFFIX: &str = "-agent";
/// Ends the name of the claim.
pub const HOME_SUFFIX: &str = "-home";

/// Waiting reasons of every normal start: no news.
const ORDINARY_WAITS: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// A child and to whom it belongs.
#[derive(Clone, Debug, PartialEq)]
pub struct Child<V> {
    /// The controller reference: its UID, and the workspace's name when it is one.
    pub controller: Option<Controller>,
    /// Who else owns it, for people.
    pub owner: Option<String>,
    /// Name of the workspace by label, when the operator's own label is there too.
    pub labelled: Option<String>,
    /// The fields decisions depend on.
    pub view: V,
}

/// Who controls a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Its UID.
    pub uid: String,
    /// Its name, when it is an AgentWorkspace.
    pub workspace: Option<String>,
}

/// How a child proves that it belongs to a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The controller reference names the workspace's UID.
    Controller,
    /// The labels of a claim, which may outlive its workspace and then has no owner reference.
    Labels,
}

impl<V: Clone> Child<V> {
    fn new(metadata: &ObjectMeta, view: V) -> Self {
        let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let labels = metadata.labels.as_ref();
        let ours = label(labels, LABEL_MANAGED_BY).filter(|value| *value == MANAGED_BY);
        let owner = controller.map(|owner| format!("{}/{}", owner.kind, owner.name)).or_else(|| {
            let manager = label(labels, LABEL_MANAGED_BY)?;
            Some(format!("managed by {manager}"))
        });
        Self {
            controller: controller.map(|owner| Controller {
                uid: owner.uid.clone(),
                workspace: is_workspace(owner).then(|| owner.name.clone()),
            }),
            owner,
            labelled: ours.and(label(labels, LABEL_WORKSPACE)).map(str::to_owned),
            view,
        }
    }

    /// Sorts the child for a workspace.
    pub fn seen(&self, proof: Proof, workspace_uid: &str, workspace_name: &str) -> Seen<V> {
        let controlled = self.controller.as_ref().map(|controller| controller.uid == workspace_uid);
        let ours = match proof {
            Proof::Controller => controlled == Some(true),
            // A claim with another controller was made for another owner, whatever its labels say.
            Proof::Labels => self.labelled.as_deref() == Some(workspace_name) && controlled != Some(false),
        };
        if ours {
            return Seen::Ours(self.view.clone());
        }
        let leftover = self.controller.as_ref().is_some_and(|controller| {
            controller.uid != workspace_uid && controller.workspace.as_deref() == Some(workspace_name)
        });
        Seen::Foreign(ForeignObject { owner: self.owner.clone(), leftover })
    }
}

/// Group and kind tell, not the version: that changes with upgrades.
fn is_workspace(owner: &OwnerReference) -> bool {
    owner.kind == AgentWorkspace::kind(&())
        && owner.api_version.split_once('/').is_some_and(|(group, _)| group == AgentWorkspace::group(&()))
}

fn label<'a>(labels: Option<&'a BTreeMap<String, String>>, name: &str) -> Option<&'a str> {
    labels?.get(name).map(String::as_str)
}

fn child_key(metadata: &ObjectMeta, suffix: &str) -> Option<WorkspaceKey> {
    let name = metadata.name.as_deref()?.strip_suffix(suffix)?;
    Some(WorkspaceKey { namespace: metadata.namespace.clone()?, name: name.to_owned() })
}

/// The workspace without what nobody reads.
pub fn workspace(mut object: AgentWorkspace) -> Option<(WorkspaceKey, AgentWorkspace)> {
    let key = WorkspaceKey { namespace: object.namespace()?, name: object.name_any() };
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.annotations = None;
    metadata.labels = None;
    Some((key, object))
}

/// Status is the operator's own; a change of it asks for nothing.
pub fn same_workspace(old: &AgentWorkspace, new: &AgentWorkspace) -> bool {
    old.metadata.generation == new.metadata.generation
        && old.metadata.deletion_timestamp.is_some() == new.metadata.deletion_timestamp.is_some()
        && old.spec == new.spec
}

/// What requests want, and of which workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct Wake {
    /// The object without what nobody reads: its owners tell for which workspace it speaks.
    object: AgentWorkspaceWake,
}

impl Wake {
    /// What it says, when it speaks for the workspace with this UID.
    pub fn seen(&self, workspace_uid: &str) -> Option<WakeView> {
        let AgentWorkspaceWakeSpec { intent, counter } = self.object.spec;
        self.object.belongs_to(workspace_uid).then_some(WakeView { intent, counter })
    }
}

/// A wake object.
pub fn wake(mut object: AgentWorkspaceWake) -> Option<(WorkspaceKey, Wake)> {
    let key = WorkspaceKey { namespace: object.namespace()?, name: object.name_any() };
    let owner_references = object.metadata.owner_references.take();
    object.metadata = ObjectMeta { owner_references, ..ObjectMeta::default() };
    Some((key, Wake { object }))
}

/// A Service.
#[expect(clippy::needless_pass_by_value, reason = "all projections have one form")]
pub fn service<K: Resource<DynamicType = ()>>(object: K) -> Option<(WorkspaceKey, Child<SimpleView>)> {
    simple(object.meta(), SERVICE_MANAGER, &SERVICE_FIELDS)
}

/// A NetworkPolicy.
#[expect(clippy::needless_pass_by_value, reason = "all projections have one form")]
pub fn policy<K: Resource<DynamicType = ()>>(object: K) -> Option<(WorkspaceKey, Child<SimpleView>)> {
    simple(object.meta(), POLICY_MANAGER, &POLICY_FIELDS)
}

fn simple(metadata: &ObjectMeta, manager: &str, fields: &[&str]) -> Option<(WorkspaceKey, Child<SimpleView>)> {
    let annotations = metadata.annotations.as_ref();
    let applied = ownership::applied_by(metadata, manager);
    let view = SimpleView {
        uid: metadata.uid.clone()?,
        deleting: metadata.deletion_timestamp.is_some(),
        applied: label(annotations, ANNOTATION_APPLIED).map(str::to_owned),
        overwritten: !applied.is_some_and(|applied| ownership::owns(applied, fields)),
        applied_at: applied.and_then(|applied| applied.time.as_ref()).map(|time| time.0),
    };
    Some((child_key(metadata, AGENT_SUFFIX)?, Child::new(metadata, view)))
}

/// A claim.
pub fn claim(object: PersistentVolumeClaim) -> Option<(WorkspaceKey, Child<ClaimView>)> {
    let metadata = &object.metadata;
    let key = child_key(metadata, HOME_SUFFIX)?;
    let status = object.status.unwrap_or_default();
    let spec = object.spec.unwrap_or_default();
    let view = ClaimView {
        uid: metadata.uid.clone()?,
        deleting: metadata.deletion_timestamp.is_some(),
        applied: metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION_APPLIED)).cloned(),
        workspace_uid: label(metadata.labels.as_ref(), LABEL_WORKSPACE_UID).map(str::to_owned),
        owner_user: metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(ANNOTATION_OWNER_USER))
            .cloned(),
        phase: match status.phase.as_deref() {
            Some("Bound") => ClaimPhase::Bound,
            Some("Lost") => ClaimPhase::Lost,
            _ => ClaimPhase::Pending,
        },
        requested: spec
            .resources
            .and_then(|resources| resources.requests?.get("storage").map(|quantity| quantity.0.clone())),
        capacity: status.capacity.and_then(|capacity| capacity.get("storage").map(|quantity| quantity.0.clone())),
        storage_class_name: spec.storage_class_name,
        access_modes: spec.access_modes.unwrap_or_default(),
        controller_uid: metadata
            .owner_references
            .iter()
            .flatten()
            .find(|owner| owner.controller == Some(true))
            .map(|owner| owner.uid.clone()),
    };
    Some((key, Child::new(metadata, view)))
}

/// A pod.
pub fn pod(object: Pod) -> Option<(WorkspaceKey, Child<PodView>)> {
    let metadata = &object.metadata;
    let key = child_key(metadata, AGENT_SUFFIX)?;
    let annotation = |name: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(name)).cloned();
    let status = object.status.unwrap_or_default();
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    let ready = condition("Ready");
    // A container that runs before the server stands for the pod until it has done its work.
    let first = status.init_container_statuses.iter().flatten().find(|container| !has_succeeded(container));
    let container = first.or_else(|| status.container_statuses.iter().flatten().next());
    let failed = status.phase.as_deref() == Some("Failed");
    let view = PodView {
        uid: metadata.uid.clone()?,
        created: metadata.creation_timestamp.as_ref()?.0,
        deleting: metadata.deletion_timestamp.is_some(),
        gone_by: metadata.deletion_timestamp.as_ref().map(|time| time.0),
        revision: annotation(ANNOTATION_REVISION),
        keys: annotation(ANNOTATION_KEYS),
        labelled: has_labels(metadata, &key.name),
        phase: match status.phase.as_deref() {
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some("Running" | "Unknown") => PodPhase::Running,
            _ => PodPhase::Pending,
        },
        ready: ready.is_some_and(|condition| condition.status == "True"),
        ready_since: ready.and_then(|condition| condition.last_transition_time.as_ref().map(|time| time.0)),
        node_name: object.spec.and_then(|spec| spec.node_name),
        ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
        unschedulable: condition("PodScheduled")
            .filter(|condition| condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable"))
            .map(message),
        disruption: condition("DisruptionTarget")
            .filter(|condition| condition.status == "True")
            .map(|condition| Disruption { reason: condition.reason.clone(), message: message(condition) }),
        stages: stages(&status),
        waiting: container.and_then(waiting),
        terminated: container.and_then(terminated),
        reason: status.reason.clone().filter(|_| failed),
        message: status.message.clone().filter(|_| failed),
    };
    Some((key, Child::new(metadata, view)))
}

/// Whether the operator's labels are there as it wrote them.
fn has_labels(metadata: &ObjectMeta, workspace: &str) -> bool {
    let controller = metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let labels = metadata.labels.as_ref();
    controller.is_some_and(|owner| {
        child_labels(workspace, &owner.uid).iter().all(|(name, value)| label(labels, name) == Some(value.as_str()))
    })
}

fn stages(status: &PodStatus) -> PodStages {
    let reached = |kind: &str| {
        let mut conditions = status.conditions.iter().flatten();
        let found = conditions.find(|condition| condition.type_ == kind && condition.status == "True")?;
        found.last_transition_time.as_ref().map(|time| time.0)
    };
    let container = status.container_statuses.iter().flatten().next();
    PodStages {
        scheduled: reached("PodScheduled"),
        network: reached("PodReadyToStartContainers"),
        container: container
            .and_then(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref())
            .map(|time| time.0),
    }
}

fn message(condition: &PodCondition) -> String {
    condition.message.clone().or_else(|| condition.reason.clone()).unwrap_or_default()
}

fn has_succeeded(container: &ContainerStatus) -> bool {
    let end = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    end.is_some_and(|end| end.exit_code == 0)
}

fn waiting(container: &ContainerStatus) -> Option<ContainerWait> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some(ContainerWait { reason: waiting.reason.clone()?, message: waiting.message.clone() })
}

fn terminated(container: &ContainerStatus) -> Option<ContainerEnd> {
    let end = container.state.as_ref()?.terminated.as_ref()?;
    Some(ContainerEnd {
        reason: end.reason.clone(),
        exit_code: end.exit_code,
        message: end.message.clone(),
        finished: end.finished_at.as_ref().map(|time| time.0),
    })
}

/// What of a pod asks for a new decision: its life, Ready, the *kinds* of trouble. Node and address count only when the pod is
/// ready, since nothing is written of them before; messages with counters in them ("back-off 20s") never count.
pub fn same_pod(old: &Child<PodView>, new: &Child<PodView>) -> bool {
    significant(&old.view) == significant(&new.view) && old.controller == new.controller
}

#[derive(PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "a value to compare, not a state machine")]
struct SignificantPod<'a> {
    deleting: bool,
    revision: Option<&'a str>,
    keys: Option<&'a str>,
    labelled: bool,
    ended: Option<PodPhase>,
    ready: bool,
    place: Option<(Option<&'a str>, Option<&'a str>)>,
    unschedulable: bool,
    disrupted: bool,
    waiting: Option<&'a str>,
    end: Option<(Option<&'a str>, i32, Option<Timestamp>)>,
}

fn significant(pod: &PodView) -> SignificantPod<'_> {
    SignificantPod {
        deleting: pod.deleting,
        revision: pod.revision.as_deref(),
        keys: pod.keys.as_deref(),
        labelled: pod.labelled,
        ended: Some(pod.phase).filter(|phase| matches!(phase, PodPhase::Succeeded | PodPhase::Failed)),
        ready: pod.ready,
        place: pod.ready.then_some((pod.node_name.as_deref(), pod.ip.as_deref())),
        unschedulable: pod.unschedulable.is_some(),
        disrupted: pod.disruption.is_some(),
        waiting: pod
            .waiting
            .as_ref()
            .map(|waiting| waiting.reason.as_str())
            .filter(|reason| !ORDINARY_WAITS.contains(reason)),
        end: pod.terminated.as_ref().map(|end| (end.reason.as_deref(), end.exit_code, end.finished)),
    }
}
