//! `/files`, `/files/upload`, `/files/move` and `/dirs`.

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{Place, ok};

#[tokio::test]
async fn a_file_is_written_read_and_deleted() {
    let place = Place::new();
    let written = place.post("/api/v1/files", json!({"path": "a/b.txt", "content": "hé", "createDirs": true})).await;
    assert_eq!(written.status, 200);
    let answer = written.json();
    let (etag, mtime) = (answer["etag"].clone(), answer["mtimeMs"].clone());
    assert_eq!(answer, json!({"ok": true, "mtimeMs": mtime, "etag": etag, "size": 3}));
    let read = place.get("/api/v1/files?path=a%2Fb.txt").await;
    let expected = json!({"content": "hé", "encoding": "utf8", "mtimeMs": mtime, "size": 3, "etag": etag});
    assert_eq!(read.json(), expected);
    assert_eq!(read.header("etag"), etag.as_str());
    assert_eq!(place.delete("/api/v1/files?path=a/b.txt").await.json(), ok());
    assert_eq!(place.get("/api/v1/files?path=a/b.txt").await.error(), (404, "not_found".into()));
    assert_eq!(place.delete("/api/v1/files?path=a/b.txt").await.error(), (404, "not_found".into()));
}

#[tokio::test]
async fn an_unchanged_file_is_not_sent_again() {
    let place = Place::new();
    place.put("f", "x");
    let etag = place.get("/api/v1/files?path=f").await.header("etag").expect("a validator").to_string();
    let request = Place::request("GET", "/api/v1/files?path=f").header("if-none-match", format!("\"other\", W/{etag}"));
    let answer = place.send(request.body(Body::empty()).expect("request")).await;
    assert_eq!((answer.status.as_u16(), answer.body.len()), (304, 0));
    assert_eq!(answer.header("etag"), Some(&*etag));
}

#[tokio::test]
async fn a_write_that_asks_for_a_new_file_never_replaces_one() {
    let place = Place::new();
    place.put("f", "mine");
    let body = json!({"path": "f", "content": "theirs"}).to_string();
    let json = |tag: &'static str| {
        let request = Place::request("POST", "/api/v1/files").header("content-type", "application/json");
        request.header("if-none-match", tag).body(Body::from(body.clone())).expect("request")
    };
    let raw = |tag: &'static str, name: &str| {
        let request = Place::request("PUT", &format!("/api/v1/files/raw?path={name}")).header("if-none-match", tag);
        request.body(Body::from("theirs")).expect("request")
    };
    assert_eq!(place.send(json("*")).await.error(), (409, "conflict".into()));
    assert_eq!(place.send(raw("*", "f")).await.error(), (409, "conflict".into()));
    for request in [json("\"abc\""), raw("\"abc\"", "f")] {
        assert_eq!(place.send(request).await.error(), (400, "validation_error".into()));
    }
    assert_eq!(std::fs::read(place.file("f")).expect("read"), b"mine");
    assert_eq!(place.send(raw("*", "new")).await.status, 200);
    assert_eq!(std::fs::read(place.file("new")).expect("read"), b"theirs");
}

#[tokio::test]
async fn parameters_that_are_not_utf_8_get_the_one_error_shape_and_touch_no_other_name() {
    let place = Place::new();
    let invalid = (400, "validation_error".to_string());
    for route in [
        "/api/v1/agent/sessions/%ff",
        "/api/v1/agent/sessions/%ff/changes",
        "/api/v1/agent/sessions/%ff/system-prompt",
        "/api/v1/agent/sessions/%ff/transcript",
        "/api/v1/agent/chat/%ff/messages",
        "/api/v1/agent/chat/%ff/stream",
        "/api/v1/agent/chat/s/%ff",
        "/api/v1/agent/attachments/%ff",
        "/api/v1/stat?path=a%ffb",
        "/api/v1/tree?path=%c0%ae%c0%ae",
        "/api/v1/files/search?q=%ff",
    ] {
        assert_eq!(place.get(route).await.error(), invalid, "{route}");
    }
    let write = Place::request("PUT", "/api/v1/files/raw?path=a%ffb").body(Body::from("x")).expect("request");
    assert_eq!(place.send(write).await.error(), invalid);
    assert_eq!(std::fs::read_dir(place.file("")).expect("listed").count(), 0);
}

#[tokio::test]
async fn binary_content_is_refused_as_text_and_given_in_base64() {
    let place = Place::new();
    for (name, content) in [("bin.png", &b"\x89PNG\0"[..]), ("latin", b"\xe9t\xe9"), ("nul", b"a\0b")] {
        place.put(name, content);
        let text = place.get(&format!("/api/v1/files?path={name}")).await;
        assert_eq!(text.error(), (415, "unsupported_media_type".into()), "{name}");
        assert_eq!(text.json()["error"]["size"], content.len());
        let encoded = place.get(&format!("/api/v1/files?path={name}&encoding=base64")).await.json();
        assert_eq!(encoded["content"], STANDARD.encode(content));
        let back = json!({"path": "copy", "content": encoded["content"], "encoding": "base64"});
        assert_eq!(place.post("/api/v1/files", back).await.status, 200);
        assert_eq!(std::fs::read(place.file("copy")).expect("there"), content);
    }
    assert_eq!(place.get("/api/v1/files?path=bin.png").await.json()["error"]["type"], "image/png");
    let bad = json!({"path": "x", "content": "%%%", "encoding": "base64"});
    assert_eq!(place.post("/api/v1/files", bad).await.json()["error"]["field"], "content");
}

#[tokio::test]
async fn a_stale_writer_is_told_what_is_there() {
    let place = Place::new();
    let first = place.post("/api/v1/files", json!({"path": "f", "content": "one"})).await.json();
    let second =
        place.post("/api/v1/files", json!({"path": "f", "content": "two", "expectedEtag": first["etag"]})).await.json();
    let stale = place.post("/api/v1/files", json!({"path": "f", "content": "x", "expectedEtag": first["etag"]})).await;
    assert_eq!(stale.error(), (409, "conflict".into()));
    assert_eq!(stale.json()["error"]["currentEtag"], second["etag"]);
    assert_eq!(stale.json()["error"]["currentMtimeMs"], second["mtimeMs"]);
    let missing = place.post("/api/v1/files", json!({"path": "none", "content": "x", "expectedMtimeMs": 1})).await;
    assert_eq!(missing.error(), (409, "conflict".into()));
    assert_eq!(missing.json()["error"]["currentEtag"], json!(null));
    let by_header = async |etag: &str| {
        let request = Place::request("POST", "/api/v1/files")
            .header("content-type", "application/json")
            .header("if-match", etag)
            .body(Body::from(json!({"path": "f", "content": "three"}).to_string()))
            .expect("request");
        place.send(request).await.status.as_u16()
    };
    assert_eq!(by_header(first["etag"].as_str().expect("text")).await, 409);
    assert_eq!(by_header("W/\"weak\"").await, 400);
    assert_eq!(by_header("\"a\", \"b\"").await, 400);
    assert_eq!(by_header(second["etag"].as_str().expect("text")).await, 200);
    assert_eq!(by_header("*").await, 200);
}

#[tokio::test]
async fn one_bad_path_has_one_answer_on_every_route() {
    let place = Place::new();
    for (bad, code) in [
        ("../x", (403, "path_rejected")),
        ("a/../../x", (403, "path_rejected")),
        ("/etc/passwd", (403, "path_rejected")),
        ("a\0b", (400, "invalid_path")),
        ("", (400, "invalid_path")),
    ] {
        let query = bad.replace('\0', "%00").replace('/', "%2F");
        let expected = (code.0, code.1.to_string());
        for route in ["files", "files/raw", "tree", "stat"] {
            let answer = place.get(&format!("/api/v1/{route}?path={query}")).await;
            assert_eq!(answer.error(), expected, "{route} {bad:?}");
        }
        assert_eq!(place.delete(&format!("/api/v1/files?path={query}")).await.error(), expected);
        for (route, body) in [
            ("files", json!({"path": bad, "content": ""})),
            ("dirs", json!({"path": bad})),
            ("files/move", json!({"from": bad, "to": "x"})),
            ("files/move", json!({"from": "x", "to": bad})),
        ] {
            assert_eq!(place.post(&format!("/api/v1/{route}"), body).await.error(), expected, "{route} {bad:?}");
        }
    }
}

#[tokio::test]
async fn paths_are_decoded_once_and_odd_names_are_legal() {
    let place = Place::new();
    place.put("%2e%2e", "literal");
    place.put("..x", "dots");
    place.put("~", "tilde");
    for (query, content) in [("%252e%252e", "literal"), ("..x", "dots"), ("~", "tilde"), ("a/../~", "tilde")] {
        assert_eq!(place.get(&format!("/api/v1/files?path={query}")).await.json()["content"], content);
    }
}

#[tokio::test]
async fn directories_are_conflicts_and_the_root_is_refused() {
    let place = Place::new();
    place.put("d/f", "x");
    assert_eq!(place.get("/api/v1/files?path=d").await.error(), (409, "is_directory".into()));
    assert_eq!(place.get("/api/v1/tree?path=d/f").await.error(), (409, "not_a_directory".into()));
    assert_eq!(place.delete("/api/v1/files?path=d").await.error(), (409, "not_empty".into()));
    for root in [".", "d/..", "./"] {
        let answer = place.delete(&format!("/api/v1/files?path={root}&recursive=true")).await;
        assert_eq!(answer.error(), (400, "validation_error".into()), "{root}");
    }
    assert_eq!(place.delete("/api/v1/files?path=d&recursive=true").await.json(), ok());
    assert!(!place.file("d").exists() && place.file("").exists());
}

#[tokio::test]
async fn moving_and_making_directories() {
    let place = Place::new();
    place.put("a", "a");
    place.put("b", "b");
    assert_eq!(place.post("/api/v1/dirs", json!({"path": "x/y", "recursive": true})).await.json(), ok());
    assert_eq!(place.post("/api/v1/dirs", json!({"path": "x/y"})).await.error(), (409, "already_exists".into()));
    let taken = place.post("/api/v1/files/move", json!({"from": "a", "to": "b"})).await;
    assert_eq!(taken.error(), (409, "already_exists".into()));
    assert_eq!(place.post("/api/v1/files/move", json!({"from": "a", "to": "x/y/a"})).await.json(), ok());
    let over = json!({"from": "x/y/a", "to": "b", "overwrite": true});
    assert_eq!(place.post("/api/v1/files/move", over).await.json(), ok());
    assert_eq!(std::fs::read(place.file("b")).expect("there"), b"a");
}

#[tokio::test]
async fn images_get_a_free_name_and_a_link() {
    let place = Place::new();
    let png = STANDARD.encode(b"\x89PNG\r\n\x1a\nrest");
    let body = json!({"filename": "My Photo.PNG", "contentBase64": png, "contentType": "image/png", "sourcePath": "docs/a.md"});
    let first = place.post("/api/v1/files/upload", body.clone()).await.json();
    assert_eq!(first["path"], "assets/images/My-Photo.png");
    assert_eq!(first["markdownUrl"], "../assets/images/My-Photo.png");
    let second = place.post("/api/v1/files/upload", body).await.json();
    assert_eq!(second["path"], "assets/images/My-Photo-1.png");
    assert_eq!(std::fs::read_dir(place.file("assets/images")).expect("folder").count(), 2, "no private name is left");
    for (kind, content, expected) in [
        ("text/html", "PGI+", (415, "unsupported_media_type")),
        ("image/png", "R0lGODlh", (415, "unsupported_media_type")),
        ("image/png", "", (400, "validation_error")),
    ] {
        let body = json!({"filename": "x", "contentBase64": content, "contentType": kind});
        let answer = place.post("/api/v1/files/upload", body).await;
        assert_eq!(answer.error(), (expected.0, expected.1.to_string()), "{kind}");
    }
    let large = STANDARD.encode([b"\x89PNG\r\n\x1a\n".to_vec(), vec![0; 10 << 20]].concat());
    let body = json!({"filename": "x", "contentBase64": large, "contentType": "image/png"});
    assert_eq!(place.post("/api/v1/files/upload", body).await.error(), (413, "payload_too_large".into()));
}
