//! The API server takes what is rendered, in a namespace of pod security level `restricted`, and fills in nothing that
//! would make the operator apply again.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod, Service},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Resource,
    api::{Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use operator::{
    crd::AgentWorkspaceSpec,
    plan::{Child, Config, ModelService, Observed, Plan, ServiceView, WorkspaceView, plan},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::support::{Space, eventually};

fn observed(space: &Space, uid: &str, spec: Value) -> Observed {
    let spec = serde_json::from_value::<AgentWorkspaceSpec>(spec).expect("a spec");
    let workspace = WorkspaceView::new(&space.name, "alice", uid, spec);
    let model_service = Some(model_service());
    Observed { model_service, ..Observed::alone(workspace, json!({"keys": []}).to_string()) }
}

fn model_service() -> ModelService {
    let selector = [("app".to_owned(), "model".to_owned())].into();
    ModelService::Found(ServiceView { selector, ports: vec![(8080, IntOrString::String("http".to_owned()))] })
}

/// The decision that announces the start, and the one that creates the pod.
fn first_two_plans(mut observed: Observed) -> (Plan, Plan) {
    let now = Timestamp::from_second(1_767_225_600).expect("a time");
    let config = Config { model_namespaces: ["fakes".to_owned()].into(), ..Config::default() };
    let first = plan(&config, &observed, now);
    observed.workspace.status = first.status.clone().expect("an announcement").status;
    let second = plan(&config, &observed, now);
    (first, second)
}

async fn apply<K>(space: &Space, object: &K) -> K
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    let api: Api<K> = Api::namespaced(space.client.clone(), &space.name);
    let name = object.meta().name.clone().expect("a name");
    let parameters = PatchParams {
        field_validation: Some(kube::api::ValidationDirective::Strict),
        ..PatchParams::apply("test").force()
    };
    api.patch(&name, &parameters, &Patch::Apply(object)).await.expect("accepted")
}

/// Applying again changes nothing. Controllers of the cluster write to a claim too, so the version is compared with the one
/// right before, until none of them came in between.
async fn applies_once<K>(space: &Space, object: &K)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Clone + Debug,
{
    apply(space, object).await;
    let api: Api<K> = Api::namespaced(space.client.clone(), &space.name);
    let name = object.meta().name.clone().expect("a name");
    eventually("an apply that changes nothing", async || {
        let before = api.get(&name).await.expect("it exists");
        let after = apply(space, object).await;
        before.meta().resource_version == after.meta().resource_version
    })
    .await;
}

/// A spec with everything that shows in a child.
fn full() -> Value {
    let key = |name: &str, purpose: &str| json!({"name": name, "secretKeyRef": {"name": "agent-a", "key": name}, "purpose": purpose});
    json!({
        "owner": {"user": "alice"},
        "agent": {
            "model": {"provider": "anthropic", "id": "m", "baseUrl": "http://model.fakes.svc:8080"}, "systemPrompt": "speak",
            "credentials": [key("model-key", "ModelKey"), key("TOKEN", "Environment"), key("npmrc", "File")],
            "env": [{"name": "A", "value": "$(HOME)"}], "settingsRef": {"name": "agent-settings"},
        },
        "template": {"configMapName": "agent-template"},
        "libraries": {"python": ["pandas", "numpy>=2,<3"]},
        "storage": {"size": "20Gi", "retention": {"whenDeleted": "Delete"}},
        "scheduling": {"nodeSelector": {"pool": "a"}, "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]},
        "podMetadata": {"labels": {"example.com/a": "b"}, "annotations": {"example.com/a": "b"}},
    })
}

#[tokio::test]
async fn rendered_children_are_accepted_under_the_restricted_level() {
    let unpacked = json!({"template": {"image": "registry.example.com/starter:1", "path": "/starter"}});
    for spec in [json!({}), full(), unpacked, json!({"storage": {"ephemeral": {}}})] {
        let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        let space = Space::new(labels).await.with_service_account().await;
        let workspace = space.workspaces().create("alice", &spec).await.expect("created");
        let (first, second) = first_two_plans(observed(&space, &workspace.metadata.uid.expect("a uid"), spec.clone()));
        for child in &first.apply {
            match child {
                Child::Claim(object) => applies_once::<PersistentVolumeClaim>(&space, object).await,
                Child::Service(object) => applies_once::<Service>(&space, object).await,
                Child::NetworkPolicy(object) => applies_once::<NetworkPolicy>(&space, object).await,
            }
        }
        let pods: Api<Pod> = Api::namespaced(space.client.clone(), &space.name);
        let parameters = PostParams { dry_run: true, ..PostParams::default() };
        let pod = second.create_pod.expect("a pod");
        let accepted = pods.create(&parameters, &pod).await.unwrap_or_else(|error| panic!("{spec}: {error}"));
        let volumes = |pod: &Pod| pod.spec.as_ref().and_then(|spec| Some(spec.volumes.as_ref()?.len()));
        assert_eq!(volumes(&accepted), volumes(&pod), "no token of a service account was mounted");
        space.remove().await;
    }
}

#[tokio::test]
async fn a_claim_that_is_not_bound_is_left_as_it_is() {
    let space = Space::new(json!({})).await;
    let workspace = space.workspaces().create("alice", &json!({})).await.expect("created");
    let uid = workspace.metadata.uid.expect("a uid");
    let (first, _) = first_two_plans(observed(&space, &uid, json!({})));
    let Some(Child::Claim(claim)) = first.apply.first() else { panic!("a claim first") };
    apply::<PersistentVolumeClaim>(&space, claim).await;
    let grown = observed(&space, &uid, json!({"storage": {"size": "20Gi"}}));
    let (first, _) = first_two_plans(grown);
    let Some(Child::Claim(claim)) = first.apply.first() else { panic!("a claim first") };
    let api: Api<PersistentVolumeClaim> = Api::namespaced(space.client.clone(), &space.name);
    let parameters = PatchParams::apply("test").force();
    let refused = api.patch("alice-home", &parameters, &Patch::Apply(claim)).await.expect_err("this is why plan waits");
    assert!(refused.to_string().contains("immutable after creation"), "{refused}");
    space.remove().await;
}
