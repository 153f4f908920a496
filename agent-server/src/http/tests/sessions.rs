//! Sessions, attachments, models and the catalog through the router.

use axum::body::Body;
use serde_json::{Value, json};

use super::{Answer, Place};
use crate::llm::StopReason;
use crate::session::tests::{answer, call, done};

async fn patch(place: &Place, uri: &str, body: Value) -> Answer {
    let request = Place::request("PATCH", uri).header("content-type", "application/json");
    place.send(request.body(Body::from(body.to_string())).expect("request")).await
}

#[tokio::test]
async fn a_session_lives_from_its_creation_to_its_deletion() {
    let place = Place::new();
    let made = place.post("/api/v1/agent/sessions", json!({"id": "s"})).await;
    assert_eq!(made.status, 201);
    let mut summary = made.json();
    for key in ["createdAt", "updatedAt", "lastModified"] {
        assert!(summary[key].take().as_str().is_some_and(|time| time.ends_with('Z')));
    }
    assert_eq!(
        summary,
        json!({
            "id": "s", "title": "New session", "turnCount": 0, "messageCount": 0, "status": "idle",
            "createdAt": null, "updatedAt": null, "lastModified": null,
            "usage": {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0, "costUsd": 0.0},
        })
    );
    assert_eq!(place.post("/api/v1/agent/sessions", json!({"id": "s"})).await.error(), (409, "already_exists".into()));
    assert_eq!(
        place.post("/api/v1/agent/sessions", json!({"id": "a b"})).await.error(),
        (400, "validation_error".into())
    );
    assert_eq!(
        place.post("/api/v1/agent/sessions", json!({"name": "x"})).await.error(),
        (400, "validation_error".into())
    );
    assert_eq!(place.get("/api/v1/agent/chat/s/messages").await.json(), json!({"messages": [], "hasMore": false}));
    let named = patch(&place, "/api/v1/agent/sessions/s", json!({"title": " My\n name "})).await;
    assert_eq!(named.json()["title"], "My name");
    assert_eq!(patch(&place, "/api/v1/agent/sessions/s", json!({"title": " "})).await.status, 400);
    assert_eq!(
        patch(&place, "/api/v1/agent/sessions/x", json!({"title": "y"})).await.error(),
        (404, "not_found".into())
    );
    assert_eq!(place.get("/api/v1/agent/sessions/s").await.json()["title"], "My name");
    assert_eq!(place.delete("/api/v1/agent/sessions/s").await.status, 204);
    assert_eq!(place.delete("/api/v1/agent/sessions/s").await.error(), (404, "not_found".into()));
    assert_eq!(place.get("/api/v1/agent/sessions/s").await.error(), (404, "not_found".into()));
}

#[tokio::test]
async fn the_list_is_paged_newest_first_and_searched_by_title() {
    let place = Place::new();
    for number in 0..5 {
        let body = json!({"id": format!("s{number}"), "title": format!("Number {number}")});
        assert_eq!(place.post("/api/v1/agent/sessions", body).await.status, 201);
        // Times have milliseconds; equal ones are ordered by id.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let ids = |page: &Value| -> Vec<String> {
        let sessions = page["sessions"].as_array().expect("list");
        sessions.iter().map(|session| session["id"].as_str().expect("id").to_owned()).collect()
    };
    let mut seen = Vec::new();
    let mut uri = "/api/v1/agent/sessions?limit=2".to_owned();
    loop {
        let page = place.get(&uri).await.json();
        seen.extend(ids(&page));
        let Some(cursor) = page["nextCursor"].as_str() else { break };
        uri = format!("/api/v1/agent/sessions?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["s4", "s3", "s2", "s1", "s0"]);
    assert_eq!(ids(&place.get("/api/v1/agent/sessions?q=NUMBER%203").await.json()), ["s3"]);
    assert_eq!(place.post("/api/v1/agent/sessions", json!({"id": "Mixed-Case"})).await.status, 201);
    assert_eq!(ids(&place.get("/api/v1/agent/sessions?q=mixed-c").await.json()), ["Mixed-Case"]);
    for query in ["limit=0", "limit=201", "limit=x", "cursor=x"] {
        let refused = place.get(&format!("/api/v1/agent/sessions?{query}")).await;
        assert_eq!(refused.error(), (400, "validation_error".into()), "{query}");
    }
}

#[tokio::test]
async fn changes_transcripts_and_attachments_of_a_session_can_be_had() {
    let place = Place::new();
    let tools = [call("a", "make", "{}"), done(StopReason::ToolUse, 1, 1)].concat();
    place.script.calls.lock().expect("no panic").extend([tools, answer("Made.")]);
    let pixel = "iVBORw0KGgo=";
    let message = json!({"id": "u1", "role": "user", "parts": [
        {"type": "text", "text": "Make it"},
        {"type": "file", "mediaType": "text/html", "filename": "p.png", "url": format!("data:text/html;base64,{pixel}")},
    ]});
    let answered = place.post("/api/v1/agent/chat", json!({"id": "s", "messages": [message]})).await;
    assert_eq!(answered.status, 200);
    let changes = place.get("/api/v1/agent/sessions/s/changes").await.json();
    let mut change = changes["files"][0].clone();
    assert!(change["timestamp"].take().is_string());
    assert_eq!(change, json!({"op": "write", "path": "a.txt", "size": 3, "timestamp": null}));
    let messages = place.get("/api/v1/agent/chat/s/messages").await.json();
    let file = &messages["messages"][0]["parts"][1];
    assert_eq!((&file["mediaType"], &file["filename"]), (&json!("image/png"), &json!("p.png")));
    let url = file["url"].as_str().expect("url");
    let bytes = place.get(url).await;
    assert_eq!((bytes.status.as_u16(), bytes.header("content-type")), (200, Some("image/png")));
    assert_eq!(bytes.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(&bytes.body[..], b"\x89PNG\r\n\x1a\n");
    assert_eq!(place.get("/api/v1/agent/attachments/x").await.error(), (404, "not_found".into()));
    let markdown = place.get("/api/v1/agent/sessions/s/transcript?format=md").await;
    assert!(markdown.header("content-disposition").is_some_and(|value| value.starts_with("attachment")));
    let text = String::from_utf8(markdown.body.to_vec()).expect("text");
    assert!(text.starts_with("# Make it\n\n## User\n\nMake it\n"), "{text}");
    let document = place.get("/api/v1/agent/sessions/s/transcript?format=json").await.json();
    assert_eq!(document["messages"], messages["messages"]);
    let lines = place.get("/api/v1/agent/sessions/s/transcript?format=jsonl").await;
    assert!(lines.body.starts_with(b"{\"type\":\"session\""));
    assert_eq!(place.get("/api/v1/agent/sessions/s/transcript?format=pdf").await.status, 400);
    assert_eq!(place.get("/api/v1/agent/sessions/x/changes").await.error(), (404, "not_found".into()));
    assert_eq!(place.delete("/api/v1/agent/sessions/s").await.status, 204);
    assert_eq!(place.get(url).await.error(), (404, "not_found".into()));
}

#[tokio::test]
async fn the_prompt_the_models_and_the_catalog_are_shown() {
    let place = Place::new();
    place.put("AGENTS.md", "Use tabs.");
    place.post("/api/v1/agent/sessions", json!({"id": "s"})).await;
    let prompt = place.get("/api/v1/agent/sessions/s/system-prompt").await.json();
    let prompt = prompt["systemPrompt"].as_str().expect("text");
    assert!(prompt.contains("Workspace root: /workspace"), "{prompt}");
    assert!(
        prompt.contains("<project_instructions file=\"AGENTS.md\">\nUse tabs.\n</project_instructions>"),
        "{prompt}"
    );
    let models = place.get("/api/v1/agent/models").await.json();
    assert_eq!(models["defaultModel"], json!({"provider": "anthropic", "id": "claude-x"}));
    assert_eq!(
        models["models"][0],
        json!({"provider": "anthropic", "id": "claude-x", "label": "claude-x", "available": true})
    );
    let catalog = place.get("/api/v1/agent/catalog").await.json();
    let names: Vec<&str> =
        catalog["tools"].as_array().expect("list").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["break", "echo", "fail", "hang", "leave", "make"]);
    assert_eq!(catalog["tools"][0]["inputSchema"], json!({"type": "object"}));
}

#[tokio::test]
async fn a_session_is_forked_at_a_message() {
    let place = Place::new();
    place.script.calls.lock().expect("no panic").extend([answer("one"), answer("two")]);
    for text in ["first", "second"] {
        place.post("/api/v1/agent/chat", json!({"id": "s", "message": text})).await;
    }
    let messages = place.get("/api/v1/agent/chat/s/messages").await.json();
    let at = &messages["messages"][1]["id"];
    let fork = place.post("/api/v1/agent/sessions/s/fork", json!({"messageId": at})).await;
    assert_eq!(fork.status, 201);
    let fork = fork.json();
    assert_eq!((&fork["title"], &fork["messageCount"]), (&json!("first"), &json!(2)));
    let id = fork["id"].as_str().expect("id");
    let forked = place.get(&format!("/api/v1/agent/chat/{id}/messages")).await.json();
    assert_eq!(forked["messages"].as_array().expect("list")[..], messages["messages"].as_array().expect("list")[..2]);
    let fault = place.post("/api/v1/agent/sessions/s/fork", json!({"messageId": "nothing"})).await;
    assert_eq!(
        (fault.error(), &fault.json()["error"]["field"]),
        ((400, "validation_error".into()), &json!("messageId"))
    );
    assert_eq!(place.post("/api/v1/agent/sessions/x/fork", json!({})).await.error(), (404, "not_found".into()));
}
