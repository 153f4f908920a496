//! Single calls, each against a scripted API server: what is sent, and what is made of the answer. A call too many or too few
//! fails by the time limit.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use axum::http::{Request, Response, StatusCode};
use futures::{FutureExt, future::LocalBoxFuture};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ObjectReference, Pod, Secret, Service},
};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower_test::mock::{self, Handle};

use super::*;
use crate::{
    crd::{AgentWorkspace, AgentWorkspaceStatus, Phase, Reason},
    plan::{self, EventKind, EventToPublish, PodDeletion},
    telemetry::{Freshness, Kind, Metrics, Verb},
    trust::KeyRing,
};

type Api = Handle<Request<Body>, Response<Body>>;

/// What one request was.
#[derive(Debug, PartialEq)]
struct Seen {
    line: String,
    body: Value,
}

/// Waits for the next request and answers it.
async fn answer(api: &mut Api, code: u16, body: Value) -> Seen {
    let (request, reply) = api.next_request().await.expect("a request");
    let (parts, body_sent) = request.into_parts();
    let body_sent = body_sent.collect_bytes().await.expect("a body");
    let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
    reply.send_response(response.body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap());
    let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    Seen { line: format!("{} {target}", parts.method), body: serde_json::from_slice(&body_sent).unwrap_or(Value::Null) }
}

fn refusal(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message})
}

struct Bench {
    cluster: Cluster,
    client: Client,
    calls: Calls,
    metrics: Arc<Metrics>,
    api: Api,
}

fn bench() -> Bench {
    let (service, api) = mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "default");
    let metrics = Arc::new(Metrics::new());
    let calls = Calls::new(Arc::clone(&metrics));
    let cluster = Cluster::new(client.clone(), calls.clone(), Arc::new(Caches::default()), "operator-1");
    Bench { cluster, client, calls, metrics, api }
}

/// Runs the call and its script together, within a second.
fn together<'a, T: 'a, S: 'a>(
    call: impl Future<Output = T> + 'a,
    script: impl Future<Output = S> + 'a,
) -> LocalBoxFuture<'a, (T, S)> {
    let (call, script) = (call.boxed_local(), script.boxed_local());
    let both = async { tokio::join!(call, script) };
    let limited = tokio::time::timeout(Duration::from_secs(1), both);
    async { limited.await.expect("as many requests as the script has") }.boxed_local()
}

fn key() -> WorkspaceKey {
    WorkspaceKey { namespace: "team-a".to_owned(), name: "alice".to_owned() }
}

fn workspace_object(version: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace", "spec": {}, "status": status,
        "metadata": {"name": "alice", "namespace": "team-a", "uid": "w-1", "resourceVersion": version, "generation": 1},
    })
}

fn workspace() -> Workspace {
    let object: AgentWorkspace = serde_json::from_value(workspace_object("7", &json!({"phase": "Running"}))).unwrap();
    Workspace { key: key(), uid: "w-1".to_owned(), version: 7, object: Arc::new(object) }
}

fn pod_object(version: &str, deleting: bool) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "alice-agent", "namespace": "team-a", "uid": "p-1", "resourceVersion": version,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{
                "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace", "name": "alice", "uid": "w-1",
                "controller": true,
            }],
        },
    });
    if deleting {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:01Z");
    }
    pod
}

#[tokio::test]
async fn a_status_patch_depends_on_the_observed_version_and_its_answer_enters_the_cache() {
    let mut bench = bench();
    let status = AgentWorkspaceStatus { phase: Some(Phase::Stopping), ..AgentWorkspaceStatus::default() };
    let workspace = workspace();
    let answered = workspace_object("9", &json!({"phase": "Stopping"}));
    let (result, seen) =
        together(bench.cluster.patch_status(&workspace, &status), answer(&mut bench.api, 200, answered)).await;
    result.unwrap();
    let path = "/apis/agents.boring.dev/v1alpha1/namespaces/team-a/agentworkspaces/alice/status";
    assert_eq!(
        seen,
        Seen {
            line: format!("PATCH {path}?&fieldManager=agent-workspace-operator%2Fstatus"),
            body: json!({"metadata": {"resourceVersion": "7"}, "status": {"phase": "Stopping"}}),
        }
    );
    assert_eq!(bench.cluster.workspace(&key()).unwrap().version, 9);
    assert_eq!(bench.metrics.calls(Kind::AgentWorkspace, Verb::Patch), 1);
}

#[tokio::test]
async fn a_conflict_is_told_apart_from_a_taken_name() {
    let mut bench = bench();
    let (workspace, status) = (workspace(), AgentWorkspaceStatus::default());
    let conflict = refusal(409, "Conflict", "the object has been modified");
    let (result, _) =
        together(bench.cluster.patch_status(&workspace, &status), answer(&mut bench.api, 409, conflict)).await;
    assert!(matches!(result, Err(ClusterError::Conflict { .. })), "{result:?}");
    let (pod, taken) = (Pod::default(), refusal(409, "AlreadyExists", "object is being deleted"));
    let key = key();
    let (result, seen) = together(bench.cluster.create_pod(&key, &pod), answer(&mut bench.api, 409, taken)).await;
    assert!(matches!(result, Err(ClusterError::AlreadyExists { .. })), "{result:?}");
    assert_eq!(seen.line, "POST /api/v1/namespaces/team-a/pods?&fieldManager=agent-workspace-operator%2Fpod");
}

#[tokio::test]
async fn children_are_applied_by_force_with_a_manager_of_their_own() {
    let mut bench = bench();
    let service: Service = serde_json::from_value(json!({"metadata": {"name": "alice-agent"}})).unwrap();
    let child = plan::Child::Service(Box::new(service));
    let answered = json!({
        "metadata": {"name": "alice-agent", "namespace": "team-a", "uid": "s-1", "resourceVersion": "5"}
    });
    let key = key();
    let (result, seen) = together(bench.cluster.apply(&key, &child), answer(&mut bench.api, 200, answered)).await;
    result.unwrap();
    let path = "/api/v1/namespaces/team-a/services/alice-agent";
    assert_eq!(seen.line, format!("PATCH {path}?&force=true&fieldManager=agent-workspace-operator%2Fservice"));
    assert_eq!(seen.body["kind"], "Service");
    assert!(bench.cluster.caches().services.get(&key).is_some());
}

#[tokio::test]
async fn only_the_pod_with_this_uid_is_deleted_and_a_missing_one_is_a_success() {
    let mut bench = bench();
    let deletion = PodDeletion { name: "alice-agent".to_owned(), uid: "p-1".to_owned(), grace_seconds: Some(60) };
    let key = key();
    let (result, seen) =
        together(bench.cluster.delete_pod(&key, &deletion), answer(&mut bench.api, 200, pod_object("12", true))).await;
    result.unwrap();
    assert_eq!(seen.line, "DELETE /api/v1/namespaces/team-a/pods/alice-agent?");
    assert_eq!(seen.body, json!({"gracePeriodSeconds": 60, "preconditions": {"uid": "p-1"}}));
    assert!(bench.cluster.caches().pods.get(&key).unwrap().value.view.deleting);
    let missing = refusal(404, "NotFound", "pods \"alice-agent\" not found");
    let (result, _) = together(bench.cluster.delete_pod(&key, &deletion), answer(&mut bench.api, 404, missing)).await;
    result.unwrap();
    assert!(bench.cluster.caches().pods.get(&key).is_none(), "what is gone is not held");
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_within_its_limit() {
    let bench = bench();
    let began = tokio::time::Instant::now();
    let result = bench.cluster.pod_events("team-a", "p-1").await;
    assert!(matches!(result, Err(ClusterError::TimedOut { .. })), "{result:?}");
    assert_eq!(began.elapsed(), READ_LIMIT);
    drop(bench.api);
}

#[tokio::test]
async fn a_terminating_namespace_is_told_apart_from_missing_rights() {
    let mut bench = bench();
    let mut terminating = refusal(403, "Forbidden", "unable to create new content in namespace team-a");
    terminating["details"] =
        json!({"causes": [{"reason": "NamespaceTerminating", "message": "…", "field": "metadata.namespace"}]});
    let (pod, key) = (Pod::default(), key());
    let (result, _) = together(bench.cluster.create_pod(&key, &pod), answer(&mut bench.api, 403, terminating)).await;
    assert!(matches!(result, Err(ClusterError::NamespaceTerminating { .. })), "{result:?}");
    let forbidden = refusal(403, "Forbidden", "exceeded quota: none");
    let (result, _) = together(bench.cluster.create_pod(&key, &pod), answer(&mut bench.api, 403, forbidden)).await;
    assert!(matches!(result, Err(ClusterError::Forbidden { .. })), "{result:?}");
}

fn event(note: &str) -> EventToPublish {
    EventToPublish { kind: EventKind::Warning, reason: Reason::ImagePull, action: "Start", note: note.to_owned() }
}

fn about() -> ObjectReference {
    ObjectReference {
        name: Some("alice".to_owned()),
        namespace: Some("team-a".to_owned()),
        uid: Some("w-1".to_owned()),
        ..ObjectReference::default()
    }
}

#[tokio::test]
async fn the_same_message_adds_to_a_series_and_another_is_an_event_of_its_own() {
    let mut bench = bench();
    let publisher = Publisher::new(bench.client.clone(), bench.calls.clone(), "operator-1");
    let (about, now) = (about(), Timestamp::now());
    let (one, other) = (event("image a"), event("image b"));
    let ((), first) = together(publisher.publish(&about, &one, now), answer(&mut bench.api, 201, json!({}))).await;
    let ((), second) = together(publisher.publish(&about, &one, now), answer(&mut bench.api, 200, json!({}))).await;
    let ((), third) = together(publisher.publish(&about, &other, now), answer(&mut bench.api, 201, json!({}))).await;
    assert!(first.line.starts_with("POST /apis/events.k8s.io/v1/namespaces/team-a/events"), "{}", first.line);
    let name = first.body["metadata"]["name"].as_str().unwrap();
    assert!(second.line.starts_with(&format!("PATCH /apis/events.k8s.io/v1/namespaces/team-a/events/{name}")));
    assert_eq!(second.body["series"]["count"], 2);
    assert_ne!(third.body["metadata"]["name"], first.body["metadata"]["name"]);
}

#[tokio::test]
async fn an_event_of_an_earlier_process_goes_on_as_a_series_and_a_refusal_stops_nothing() {
    let mut bench = bench();
    let publisher = Publisher::new(bench.client.clone(), bench.calls.clone(), "operator-2");
    let (about, now, one) = (about(), Timestamp::now(), event("image a"));
    let script = async {
        answer(&mut bench.api, 409, refusal(409, "AlreadyExists", "exists")).await;
        answer(&mut bench.api, 200, json!({})).await
    };
    let ((), seen) = together(publisher.publish(&about, &one, now), script).await;
    assert!(seen.line.starts_with("PATCH ") && seen.body["series"]["count"] == 2, "{seen:?}");
    let script = answer(&mut bench.api, 403, refusal(403, "Forbidden", "no"));
    together(publisher.publish(&about, &event("another"), now), script).await;
}

fn secret(data: BTreeMap<String, Vec<u8>>) -> Value {
    let data = data.into_iter().map(|(name, value)| (name, ByteString(value))).collect();
    serde_json::to_value(Secret { data: Some(data), ..Secret::default() }).unwrap()
}

#[tokio::test]
async fn of_two_replicas_that_make_keys_at_once_the_slower_takes_those_of_the_faster() {
    let mut bench = bench();
    let keys = Keys::new(bench.client.clone(), bench.calls.clone(), "system", "keys");
    let winner = KeyRing::generate().unwrap();
    let script = async {
        answer(&mut bench.api, 404, refusal(404, "NotFound", "no")).await;
        let sent = answer(&mut bench.api, 409, refusal(409, "AlreadyExists", "exists")).await;
        answer(&mut bench.api, 200, secret(winner.clone())).await;
        sent
    };
    let (ring, sent) = together(keys.read_or_create(), script).await;
    assert_eq!(ring.unwrap().ring.public_key_set(), KeyRing::read(&winner).unwrap().public_key_set());
    assert!(sent.line.starts_with("POST /api/v1/namespaces/system/secrets"), "{}", sent.line);
}

#[tokio::test]
async fn an_existing_secret_is_never_written_whatever_is_in_it() {
    let mut bench = bench();
    let keys = Keys::new(bench.client.clone(), bench.calls.clone(), "system", "keys");
    let script = answer(&mut bench.api, 200, secret(BTreeMap::new()));
    let (result, _) = together(keys.read_or_create(), script).await;
    assert!(matches!(result, Err(KeysError::Content { .. })), "{result:?}");
}

/// Answers the lists of all watches: one workspace that does not decode and one that does, nothing else.
async fn lists(api: &mut Api) {
    for _ in 0..WATCHED.len() {
        let (request, send) = api.next_request().await.expect("a list");
        let is_workspaces = request.uri().path().ends_with("/agentworkspaces");
        let mut good = workspace_object("5", &json!({}));
        good["metadata"]["name"] = json!("good");
        let mut bad = workspace_object("6", &json!({}));
        bad["spec"] = json!({"runPolicy": 7});
        let items = if is_workspaces { json!([bad, good]) } else { json!([]) };
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items});
        send.send_response(Response::new(Body::from(serde_json::to_vec(&list).unwrap())));
    }
}

#[tokio::test]
async fn one_object_that_does_not_decode_does_not_stop_the_others() {
    let mut bench = bench();
    let freshness = Arc::new(Freshness::new(&WATCHED));
    freshness.started();
    let (sender, mut changed) = tokio::sync::mpsc::unbounded_channel();
    let caches = Caches::default();
    let tasks = caches.watch(&bench.client, &freshness, &bench.metrics, move |key| {
        sender.send(key).expect("the test listens");
    });
    let (first, ()) = together(async { changed.recv().await }, lists(&mut bench.api)).await;
    assert_eq!(first, Some(WorkspaceKey { namespace: "team-a".to_owned(), name: "good".to_owned() }));
    freshness.all_listed().await;
    assert_eq!((caches.workspaces.len(), freshness.problems()), (1, Vec::new()));
    let text = bench.metrics.render().unwrap();
    assert!(text.contains("undecodable_objects{kind=\"AgentWorkspace\"} 1"), "{text}");
    drop(tasks);
}

#[tokio::test]
async fn a_refused_watch_is_a_problem_that_names_the_roles() {
    let mut bench = bench();
    let freshness = Arc::new(Freshness::new(&[Kind::Pod]));
    freshness.started();
    let caches = Caches::default();
    let tasks = caches.watch(&bench.client, &freshness, &bench.metrics, |_| {});
    for _ in 0..WATCHED.len() {
        answer(&mut bench.api, 403, refusal(403, "Forbidden", "pods is forbidden")).await;
    }
    let problem = async {
        while !freshness.problems().iter().any(|problem| problem.contains("roles installed")) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), problem).await.expect("the refusal is reported");
    drop(tasks);
}

#[test]
fn the_rights_are_those_that_were_reviewed() {
    let all = BTreeMap::from([
        ("admin", rbac::admin()),
        ("edit", rbac::edit()),
        ("gateway-cluster", rbac::gateway_cluster()),
        ("gateway-namespace", rbac::gateway_namespace()),
        ("operator-cluster", rbac::operator_cluster()),
        ("operator-namespace", rbac::operator_namespace()),
        ("view", rbac::view()),
    ]);
    let lines: Vec<String> = all
        .iter()
        .flat_map(|(role, rules)| {
            rules.iter().map(move |rule| {
                let words = |list: &Option<Vec<String>>| list.clone().unwrap_or_default().join(",");
                let name =
                    rule.resource_names.as_ref().map(|names| format!(" {}", names.join(","))).unwrap_or_default();
                format!(
                    "{role}: {}/{}{name}: {}",
                    words(&rule.api_groups),
                    words(&rule.resources),
                    rule.verbs.join(" ")
                )
            })
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
    admin: agents.boring.dev/agentworkspaces/connect: create
    edit: agents.boring.dev/agentworkspaces: create update patch delete deletecollection
    gateway-cluster: agents.boring.dev/agentworkspaces: get list watch
    gateway-cluster: agents.boring.dev/agentworkspacewakes: get list watch create update
    gateway-cluster: authentication.k8s.io/tokenreviews: create
    gateway-cluster: authorization.k8s.io/subjectaccessreviews: create
    gateway-namespace: /secrets agent-workspace-gateway-keys: get
    operator-cluster: agents.boring.dev/agentworkspaces: get list watch delete
    operator-cluster: agents.boring.dev/agentworkspaces/status: patch
    operator-cluster: agents.boring.dev/agentworkspacewakes: get list watch
    operator-cluster: agents.boring.dev/agentworkspaces/finalizers: update
    operator-cluster: /persistentvolumeclaims: get list watch create patch
    operator-cluster: /services: get list watch create patch
    operator-cluster: networking.k8s.io/networkpolicies: get list watch create patch
    operator-cluster: /pods: get list watch create patch delete
    operator-cluster: /events: list
    operator-cluster: events.k8s.io/events: create patch
    operator-cluster: storage.k8s.io/storageclasses: get
    operator-cluster: /nodes: get
    operator-namespace: /secrets: create
    operator-namespace: /secrets agent-workspace-operator-keys: get update
    operator-namespace: /secrets agent-workspace-gateway-keys: get update
    operator-namespace: coordination.k8s.io/leases: create
    operator-namespace: coordination.k8s.io/leases agent-workspace-operator: get update
    view: agents.boring.dev/agentworkspaces: get list watch
    ");
}

#[test]
fn a_container_that_runs_before_the_server_stands_for_the_pod_until_it_has_succeeded() {
    let seen = |first: &Value| {
        let mut pod = pod_object("7", false);
        pod["status"] = json!({
            "phase": "Pending",
            "initContainerStatuses": [status_of("template", first)],
            "containerStatuses": [status_of("agent", &json!({"waiting": {"reason": "PodInitializing"}}))],
        });
        let (_, child) = views::pod(serde_json::from_value(pod).unwrap()).unwrap();
        (child.view.waiting.map(|wait| wait.reason), child.view.terminated.map(|end| end.exit_code))
    };
    let word = |word: &str| Some(word.to_owned());
    assert_eq!(seen(&json!({"waiting": {"reason": "ImagePullBackOff"}})), (word("ImagePullBackOff"), None));
    assert_eq!(seen(&json!({"running": {}})), (None, None));
    assert_eq!(seen(&json!({"terminated": {"exitCode": 1}})), (None, Some(1)));
    assert_eq!(seen(&json!({"terminated": {"exitCode": 0}})), (word("PodInitializing"), None));
}

fn status_of(name: &str, state: &Value) -> Value {
    json!({"name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state})
}
