use serde_json::json;
use wiremock::{
    Mock, MockServer, ResponseTemplate,
    matchers::{body_json, method, path},
};

use super::*;
use crate::trust::{Claims, KeyRing};

fn client(server: &MockServer) -> AgentClient {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let keys = KeyRing::read(&KeyRing::generate().unwrap()).unwrap();
    AgentClient { port: server.address().port(), ..AgentClient::new(Signer::new(keys)).unwrap() }
}

fn drain() -> Drain {
    Drain { pod_uid: "p-1".to_owned(), ip: "127.0.0.1".to_owned(), grace_seconds: 55 }
}

const TARGET: Target<'_> = Target { namespace: "team-a", name: "alice", workspace_uid: "w-1" };

async fn readiness(status: u16, body: serde_json::Value) -> Vec<ReadinessReason> {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(status).set_body_json(body);
    Mock::given(method("GET")).and(path("/ready")).respond_with(answer).mount(&server).await;
    client(&server).readiness("p-1", "127.0.0.1", Timestamp::now()).await.reasons
}

#[tokio::test]
async fn what_separates_commands_from_the_server_is_read_with_the_readiness() {
    let server = MockServer::start().await;
    let isolation = json!({"kind": "Landlock", "network": "Isolated", "degraded": "no namespaces"});
    let answer = ResponseTemplate::new(200).set_body_json(json!({"status": "ok", "isolation": isolation}));
    Mock::given(method("GET")).and(path("/ready")).respond_with(answer).mount(&server).await;
    let readiness = client(&server).readiness("p-1", "127.0.0.1", Timestamp::now()).await;
    let expected =
        AgentIsolation { kind: "Landlock".to_owned(), isolated: true, degraded: Some("no namespaces".to_owned()) };
    assert_eq!(readiness.isolation, Some(expected));
}

#[tokio::test]
async fn drain_is_called_with_a_lifecycle_token_for_exactly_this_pod() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/api/v1/drain"))
        .and(body_json(json!({"graceSeconds": 55})))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({"state": "draining"})))
        .expect(1)
        .mount(&server)
        .await;
    let client = client(&server);
    client.drain(TARGET, &drain(), Timestamp::now()).await.unwrap();
    let requests = server.received_requests().await.unwrap();
    let token = requests[0].headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").unwrap().to_owned();
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::EdDSA);
    validation.insecure_disable_signature_validation();
    validation.set_audience(&["team-a/alice/w-1/p-1"]);
    let claims = jsonwebtoken::decode::<Claims>(&token, &jsonwebtoken::DecodingKey::from_secret(b""), &validation)
        .unwrap()
        .claims;
    assert_eq!((claims.scope.as_str(), claims.sub.as_str()), ("lifecycle", "system:operator"));
}

#[tokio::test]
async fn a_refused_drain_is_an_error_that_names_the_status() {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(503)).mount(&server).await;
    let error = client(&server).drain(TARGET, &drain(), Timestamp::now()).await.unwrap_err();
    assert_eq!(error.to_string(), "the agent server answered 503 Service Unavailable");
}

#[tokio::test]
async fn each_readiness_answer_of_the_contract_is_understood() {
    assert_eq!(readiness(200, json!({"status": "ok"})).await, []);
    assert_eq!(
        readiness(200, json!({"status": "degraded", "reasons": ["ModelKeyMissing"]})).await,
        [ReadinessReason::ModelKeyMissing]
    );
    let unavailable = json!({"status": "unavailable", "reason": "VolumeNotWritable", "message": "no", "retryAfter": 5});
    assert_eq!(readiness(503, unavailable).await, [ReadinessReason::VolumeNotWritable]);
}

#[tokio::test]
async fn answers_outside_of_the_contract_and_no_answer_count_as_unreachable() {
    for (status, body) in [
        (200, json!({"status": "fine"})),
        (200, json!({"status": "degraded", "reasons": ["Tired"]})),
        (200, json!({"status": "degraded"})),
        (500, json!({"status": "ok"})),
        (200, json!("x".repeat(20_000))),
    ] {
        assert_eq!(readiness(status, body).await, [ReadinessReason::Unreachable]);
    }
    // Not one of the shared servers: after the drop another test would answer at this address.
    let server = MockServer::builder().start().await;
    let client = client(&server);
    drop(server);
    let answer = client.readiness("p-1", "127.0.0.1", Timestamp::now()).await;
    assert_eq!(answer.reasons, [ReadinessReason::Unreachable]);
    assert_eq!(
        client.readiness("p-1", "not an address", Timestamp::now()).await.reasons,
        [ReadinessReason::Unreachable]
    );
}
