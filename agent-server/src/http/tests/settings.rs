//! `/workspace-settings`, and the folder of uploads that it names.

use axum::body::Body;
use serde_json::{Value, json};

use super::{Answer, Place};
use crate::config::Arguments;

const ROUTE: &str = "/api/v1/workspace-settings";

fn settings(folder: &str) -> Value {
    json!({"settings": {"markdown": {"imageUploadDir": folder}}})
}

async fn put(place: &Place, body: Value) -> Answer {
    let request = Place::request("PUT", ROUTE).header("content-type", "application/json");
    place.send(request.body(Body::from(body.to_string())).expect("request")).await
}

async fn upload(place: &Place) -> Answer {
    let svg = "PHN2Zz48L3N2Zz4=";
    let body = json!({"filename": "x.svg", "contentBase64": svg, "contentType": "image/svg+xml"});
    place.post("/api/v1/files/upload", body).await
}

#[tokio::test]
async fn settings_have_a_default_are_kept_in_the_workspace_and_leave_other_keys_alone() {
    let place = Place::new();
    assert_eq!(place.get(ROUTE).await.json(), settings("assets/images"));
    assert_eq!(upload(&place).await.json()["path"], "assets/images/x.svg");
    place.put(".boring/settings", "{\"theme\": \"dark\", \"markdown\": {\"wrap\": 80}}");
    assert_eq!(place.get(ROUTE).await.json(), settings("assets/images"));
    assert_eq!(put(&place, settings("docs/./pictures")).await.json(), settings("docs/pictures"));
    assert_eq!(place.get(ROUTE).await.json(), settings("docs/pictures"));
    let file: Value =
        serde_json::from_slice(&std::fs::read(place.file(".boring/settings")).expect("read")).expect("JSON");
    assert_eq!(file, json!({"theme": "dark", "markdown": {"wrap": 80, "imageUploadDir": "docs/pictures"}}));
    assert_eq!(upload(&place).await.json()["path"], "docs/pictures/x.svg");
}

#[tokio::test]
async fn a_bad_folder_is_refused_and_changes_nothing() {
    let place = Place::new();
    for bad in ["", "/etc", "../x", "a\0b", ".git/hooks"] {
        let answer = put(&place, settings(bad)).await;
        assert_eq!(answer.error(), (400, "invalid_path".into()), "{bad:?}");
        assert_eq!(answer.json()["error"]["field"], "settings.markdown.imageUploadDir");
    }
    assert!(!place.file(".boring").exists());
    let unknown = json!({"settings": {"markdown": {"imageUploadDir": "a"}, "other": 1}});
    assert_eq!(put(&place, unknown).await.error(), (400, "validation_error".into()));
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_stays_as_it_is() {
    let place = Place::new();
    for damaged in ["{\"markdown\": ", "[]", "{\"markdown\": 1}", "{\"markdown\": {\"imageUploadDir\": 5}}"] {
        place.put(".boring/settings", damaged);
        assert_eq!(place.get(ROUTE).await.error(), (409, "conflict".into()), "{damaged}");
        assert_eq!(upload(&place).await.error(), (409, "conflict".into()), "{damaged}");
    }
    for damaged in ["{\"markdown\": ", "[]", "{\"markdown\": 1}"] {
        place.put(".boring/settings", damaged);
        assert_eq!(put(&place, settings("a")).await.error(), (409, "conflict".into()), "{damaged}");
        assert_eq!(std::fs::read_to_string(place.file(".boring/settings")).expect("read"), damaged);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_writers_at_once_lose_no_key() {
    let place = std::sync::Arc::new(Place::new());
    let writers: Vec<_> = (0..4)
        .map(|number| {
            let place = place.clone();
            tokio::spawn(async move { put(&place, settings(&format!("folder-{number}"))).await.status.as_u16() })
        })
        .collect();
    for writer in writers {
        let status = writer.await.expect("no panic");
        assert!(matches!(status, 200 | 409), "{status}");
    }
    let kept = place.get(ROUTE).await.json();
    assert!(kept["settings"]["markdown"]["imageUploadDir"].as_str().expect("text").starts_with("folder-"), "{kept}");
}

#[tokio::test]
async fn configured_defaults_hold_where_the_workspace_says_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("settings");
    std::fs::write(&file, r#"{"markdown": {"imageUploadDir": "team/pictures"}}"#).expect("written");
    let place = Place::with(Arguments { settings_file: file.to_str().map(str::to_owned), ..Arguments::default() });
    assert_eq!(place.get(ROUTE).await.json(), settings("team/pictures"));
    assert_eq!(upload(&place).await.json()["path"], "team/pictures/x.svg");
    assert_eq!(put(&place, settings("mine")).await.json(), settings("mine"));
    assert_eq!(place.get(ROUTE).await.json(), settings("mine"));
}
