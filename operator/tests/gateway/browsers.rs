//! Signing in with a browser.

use serde_json::json;

use crate::{
    agent::Agent,
    world::{World, answer, code},
};

const PAGE: (&str, &str) = ("accept", "text/html,*/*;q=0.8");

#[tokio::test]
async fn a_browser_signs_in_with_a_token_and_stays_signed_in_at_this_workspace_alone() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let agent = Agent::start("pod-1", 40).await;
    for name in ["api", "web"] {
        world.workspace(name, "alice", json!({})).await;
        world.runs(name, "pod-1", &agent.ip).await;
        gateway.serves(&world.host(name), &token).await;
    }
    let host = world.host("api");
    let origin = format!("https://{host}");

    let page = gateway.request("GET", &host, "/").header(PAGE.0, PAGE.1).send().await.expect("a page");
    assert_eq!(page.status(), 401);
    assert!(page.text().await.expect("a body").contains("action=\"/_auth/session\""));
    let form = |token: &str| gateway.request("POST", &host, "/_auth/session").body(format!("token={token}"));
    let foreign = form(&token).header("origin", "https://evil.example").send().await.expect("an answer");
    assert_eq!(foreign.status(), 403);
    let wrong = form("rubbish").header("origin", &origin).send().await.expect("an answer");
    assert_eq!(wrong.status(), 401);
    let signed_in = form(&token).header("origin", &origin).send().await.expect("an answer");
    assert_eq!((signed_in.status().as_u16(), &signed_in.headers()["location"]), (303, &"/".parse().expect("a value")));
    let cookie = signed_in.headers()["set-cookie"].to_str().expect("text").to_owned();
    let (value, attributes) = cookie.split_once("; ").expect("attributes");
    assert!(value.starts_with("__Host-agent-session="), "{cookie}");
    assert_eq!(attributes, "Path=/; Max-Age=43200; Secure; HttpOnly; SameSite=Lax");

    let with_cookie = |host: &str, method: &str| gateway.request(method, host, "/api/v1/tree").header("cookie", value);
    let (status, shown) = answer(with_cookie(&host, "GET")).await;
    assert_eq!((status, &shown["headers"]["cookie"]), (200, &serde_json::Value::Null), "the pod never sees it");
    assert_eq!(answer(with_cookie(&host, "POST").header("origin", &origin).body("x")).await.0, 200);
    let sibling = format!("https://{}", world.host("web"));
    assert_eq!(
        code(&answer(with_cookie(&host, "POST").header("origin", sibling).body("x")).await),
        (403, "auth_invalid")
    );
    assert_eq!(code(&answer(with_cookie(&host, "POST").body("x")).await), (403, "auth_invalid"));
    assert_eq!(code(&answer(with_cookie(&world.host("web"), "GET")).await), (401, "auth_required"));
    let by_path = format!("/w/{}/api/api/v1/tree", world.namespace);
    let by_path = gateway.request("GET", "gateway.example", &by_path).header("cookie", value);
    assert_eq!(code(&answer(by_path).await), (401, "auth_required"));
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_link_signs_one_browser_in_once_and_every_replica_takes_the_session() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let agent = Agent::start("pod-1", 41).await;
    world.workspace("api", "alice", json!({})).await;
    world.runs("api", "pod-1", &agent.ip).await;
    let host = world.host("api");
    gateway.serves(&host, &token).await;

    let (status, link) = answer(gateway.request("POST", &host, "/_auth/link").bearer_auth(&token)).await;
    assert_eq!((status, &link["expiresInSeconds"]), (201, &json!(60)));
    let link = link["url"]
        .as_str()
        .expect("an address")
        .strip_prefix(&format!("https://{host}"))
        .expect("its host")
        .to_owned();
    let opened = gateway.request("GET", &host, &link).send().await.expect("an answer");
    assert_eq!(opened.status(), 303);
    let cookie = opened.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("a value").to_owned();
    assert_eq!(gateway.request("GET", &host, &link).send().await.expect("an answer").status(), 401);

    let other = world.gateway().await;
    let (status, _) = answer(other.request("GET", &host, "/api/v1/tree").header("cookie", &cookie)).await;
    assert_eq!(status, 200);
    let bob = world.person("bob").await;
    let refused = answer(gateway.request("POST", &host, "/_auth/link").bearer_auth(&bob)).await;
    assert_eq!(code(&refused), (403, "auth_invalid"));
    other.stop().await;
    gateway.stop().await;
    world.remove().await;
}
