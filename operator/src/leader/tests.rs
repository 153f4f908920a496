//! The election against a small Lease API that keeps one object and checks resourceVersions as the API server does.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::{cluster::Calls, telemetry::Metrics};

#[derive(Debug, Default)]
struct LeaseApi {
    lease: Option<Value>,
    version: u64,
    down: bool,
    writes: Vec<String>,
}

impl LeaseApi {
    fn answer(&mut self, method: &Method, body: &[u8]) -> (u16, Value) {
        if self.down {
            return (503, status(503, "ServiceUnavailable"));
        }
        match *method {
            Method::GET => self.lease.clone().map_or((404, status(404, "NotFound")), |lease| (200, lease)),
            Method::POST if self.lease.is_some() => (409, status(409, "AlreadyExists")),
            Method::POST => (201, self.store(body)),
            Method::PUT => {
                let sent: Value = serde_json::from_slice(body).unwrap();
                let held = self.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
                assert!(sent["metadata"]["resourceVersion"].is_string(), "every replace carries a resourceVersion");
                if held.as_ref() == Some(&sent["metadata"]["resourceVersion"]) {
                    (200, self.store(body))
                } else {
                    (409, status(409, "Conflict"))
                }
            }
            _ => panic!("unexpected {method}"),
        }
    }

    fn store(&mut self, body: &[u8]) -> Value {
        let mut lease: Value = serde_json::from_slice(body).unwrap();
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.writes.push(lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned());
        self.lease = Some(lease.clone());
        lease
    }

    fn holder(&self) -> Option<String> {
        Some(self.lease.as_ref()?["spec"]["holderIdentity"].as_str()?.to_owned())
    }
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason})
}

type Shared = Arc<Mutex<LeaseApi>>;

fn candidate(api: &Shared, identity: &str) -> Candidate {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let (code, answer) = api.lock().unwrap().answer(&parts.method, &body);
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, Infallible>(Response::builder().status(StatusCode::from_u16(code).unwrap()).body(body).unwrap())
        }
    });
    let client = kube::Client::new(service, "system");
    let calls = Calls::new(Arc::new(Metrics::new()));
    Candidate::new(Leases::new(client, calls, "system", "operator", CALL_LIMIT), identity)
}

struct Running {
    leading: watch::Receiver<bool>,
    resign: CancellationToken,
    task: tokio::task::JoinHandle<End>,
}

fn run(candidate: Candidate) -> Running {
    let (sender, leading) = watch::channel(false);
    let resign = CancellationToken::new();
    let token = resign.clone();
    let task = tokio::spawn(async move { candidate.run(&sender, &token).await });
    Running { leading, resign, task }
}

impl Running {
    async fn leads_within(&mut self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.leading.wait_for(|leading| *leading)).await.is_ok_and(|result| result.is_ok())
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_replicas_that_start_together_one_leads() {
    let api = Shared::default();
    let (mut one, mut two) = (candidate(&api, "one"), candidate(&api, "two"));
    let standings = [one.step().await.unwrap(), two.step().await.unwrap()];
    assert_eq!(standings, [Standing::Leading, Standing::Following { holder: Some("one".to_owned()) }]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_comes_second_does_not_lead() {
    let api = Shared::default();
    let (mut one, two) = (candidate(&api, "one"), candidate(&api, "two"));
    one.step().await.unwrap();
    let held = two.leases.get().await.unwrap().unwrap();
    one.step().await.unwrap();
    let late = Lease { spec: Some(two.spec(held.spec.as_ref())), ..held };
    assert_eq!(written(two.leases.replace(&late).await).unwrap(), Standing::Following { holder: None });
    assert_eq!(api.lock().unwrap().holder().as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_over_within_two_seconds() {
    let api = Shared::default();
    let mut one = run(candidate(&api, "one"));
    assert!(one.leads_within(Duration::from_secs(1)).await);
    let mut two = run(candidate(&api, "two"));
    assert!(!two.leads_within(Duration::from_secs(60)).await, "the leader renews");
    one.resign.cancel();
    assert_eq!(one.task.await.unwrap(), End::Resigned);
    assert!(two.leads_within(Duration::from_secs(2)).await);
    assert!(api.lock().unwrap().writes.contains(&String::new()), "the release empties the holder");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leaders_lease_is_taken_over_after_its_duration_and_not_before() {
    let api = Shared::default();
    candidate(&api, "dead").step().await.unwrap();
    let mut two = run(candidate(&api, "two"));
    assert!(!two.leads_within(Duration::from_secs(14)).await);
    assert!(two.leads_within(Duration::from_secs(4)).await);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_renew_is_lost_before_anybody_else_may_begin() {
    let api = Shared::default();
    let mut one = run(candidate(&api, "one"));
    assert!(one.leads_within(Duration::from_secs(1)).await);
    let began = Instant::now();
    api.lock().unwrap().down = true;
    assert_eq!(one.task.await.unwrap(), End::Lost);
    assert!(began.elapsed() <= RENEW_DEADLINE + RENEW_PERIOD && began.elapsed() < LEASE_DURATION);
    assert!(!*one.leading.borrow());
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_does_not_cost_the_lease() {
    let api = Shared::default();
    let mut one = run(candidate(&api, "one"));
    assert!(one.leads_within(Duration::from_secs(1)).await);
    api.lock().unwrap().down = true;
    sleep(Duration::from_secs(6)).await;
    api.lock().unwrap().down = false;
    sleep(Duration::from_secs(60)).await;
    assert!(*one.leading.borrow() && !one.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_taken_over_is_lost() {
    let api = Shared::default();
    let mut one = run(candidate(&api, "one"));
    assert!(one.leads_within(Duration::from_secs(1)).await);
    {
        let mut api = api.lock().unwrap();
        let mut lease = api.lease.clone().unwrap();
        lease["spec"]["holderIdentity"] = json!("two");
        api.store(&serde_json::to_vec(&lease).unwrap());
    }
    assert_eq!(one.task.await.unwrap(), End::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_follower_resigns_without_touching_the_lease() {
    let api = Shared::default();
    candidate(&api, "one").step().await.unwrap();
    let two = run(candidate(&api, "two"));
    sleep(Duration::from_secs(3)).await;
    two.resign.cancel();
    assert_eq!(two.task.await.unwrap(), End::Resigned);
    assert_eq!(api.lock().unwrap().writes, ["one"]);
}
