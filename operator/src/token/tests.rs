use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::http::{Request, Response, StatusCode};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::{
    telemetry::Metrics,
    trust::{Claims, KeyRing},
};

const WORKSPACE: &str = "/apis/agents.boring.dev/v1alpha1/namespaces/team-a/agentworkspaces/alice";
const SECRET: &str = "/api/v1/namespaces/system/secrets/agent-workspace-operator-keys";

fn workspace(spec: &Value, status: &Value) -> Value {
    json!({
        "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
        "metadata": {"name": "alice", "namespace": "team-a", "uid": "w-1"}, "spec": spec, "status": status,
    })
}

fn secret() -> Value {
    let data: BTreeMap<String, ByteString> =
        KeyRing::generate().unwrap().into_iter().map(|(name, value)| (name, ByteString(value))).collect();
    serde_json::to_value(Secret { data: Some(data), ..Secret::default() }).unwrap()
}

/// Runs the command against an API server that holds these objects and refuses anything but reads of them.
async fn run(objects: &[(&str, Value)], user: Option<&str>) -> Result<Claims, String> {
    let objects: BTreeMap<String, Value> =
        objects.iter().map(|(path, object)| ((*path).to_owned(), object.clone())).collect();
    let service = tower::service_fn(move |request: Request<Body>| {
        assert_eq!(request.method(), "GET");
        let missing =
            json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "gone"});
        let (code, answer) = objects.get(request.uri().path()).map_or((404, missing), |object| (200, object.clone()));
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        let answer = Response::builder().status(StatusCode::from_u16(code).unwrap()).body(body).unwrap();
        async move { Ok::<_, Infallible>(answer) }
    });
    let wanted = TokenArguments {
        name: "alice".to_owned(),
        namespace: "team-a".to_owned(),
        user: user.map(str::to_owned),
        place: Place { namespace: "system".to_owned() },
    };
    let client = Client::new(service, "default");
    let token =
        token(client, Calls::new(Arc::new(Metrics::new())), &wanted).await.map_err(|error| error.to_string())?;
    let mut validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::EdDSA);
    validation.insecure_disable_signature_validation();
    validation.set_audience(&["team-a/alice/w-1/p-1"]);
    let key = jsonwebtoken::DecodingKey::from_secret(b"");
    Ok(jsonwebtoken::decode::<Claims>(&token, &key, &validation).map_err(|error| error.to_string())?.claims)
}

fn running() -> Value {
    json!({"phase": "Running", "pod": {"name": "alice-agent", "uid": "p-1"}})
}

#[tokio::test]
async fn the_token_speaks_for_the_given_user_else_the_owner_else_the_command_itself() {
    let owned = workspace(&json!({"owner": {"user": "alice@example.com"}}), &running());
    let objects = [(WORKSPACE, owned), (SECRET, secret())];
    assert_eq!(run(&objects, Some("bob")).await.unwrap().sub, "bob");
    let claims = run(&objects, None).await.unwrap();
    assert_eq!((claims.sub.as_str(), claims.scope.as_str()), ("alice@example.com", "user"));
    assert_eq!(claims.exp - claims.iat, 600);
    let objects = [(WORKSPACE, workspace(&json!({}), &running())), (SECRET, secret())];
    assert_eq!(run(&objects, None).await.unwrap().sub, "operator-token");
}

#[tokio::test]
async fn what_is_missing_is_named_with_what_to_do() {
    assert_eq!(run(&[], None).await.unwrap_err(), "there is no AgentWorkspace alice in namespace team-a");
    let stopped = [(WORKSPACE, workspace(&json!({}), &json!({"phase": "Stopped"})))];
    let text = run(&stopped, None).await.unwrap_err();
    assert!(text.contains("phase Stopped") && text.contains("spec.runPolicy to Always"), "{text}");
    let text = run(&[(WORKSPACE, workspace(&json!({}), &running()))], None).await.unwrap_err();
    assert!(text.starts_with("there is no key secret system/agent-workspace-operator-keys"), "{text}");
}
