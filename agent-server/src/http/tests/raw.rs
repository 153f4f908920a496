//! `/files/raw`: bytes, ranges, uploads.

use axum::body::Body;
use bytes::Bytes;

use super::{Answer, Place};

async fn get(place: &Place, uri: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Place::request("GET", uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    place.send(request.body(Body::empty()).expect("request")).await
}

async fn put(place: &Place, uri: &str, headers: &[(&str, &str)], body: Body) -> Answer {
    let mut request = Place::request("PUT", uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    place.send(request.body(body).expect("request")).await
}

#[tokio::test]
async fn bytes_come_with_type_length_and_validator() {
    let place = Place::new();
    let large: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    place.put("large.bin", &large);
    place.put("page.html", "<script>");
    place.put("notes.md", "# ü");
    let answer = get(&place, "/api/v1/files/raw?path=large.bin", &[]).await;
    assert_eq!(answer.body, large);
    assert_eq!(answer.header("content-length"), Some("800000"));
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    assert_eq!(answer.header("accept-ranges"), Some("bytes"));
    let notes = get(&place, "/api/v1/files/raw?path=notes.md", &[]).await;
    assert_eq!(notes.header("content-type"), Some("text/markdown; charset=utf-8"));
    assert_eq!(notes.header("content-disposition"), None);
    let page = get(&place, "/api/v1/files/raw?path=page.html", &[]).await;
    assert_eq!(page.header("content-disposition"), Some("attachment"));
    assert_eq!(page.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    let by_script = [("sec-fetch-site", "same-origin"), ("sec-fetch-dest", "empty")];
    let page = get(&place, "/api/v1/files/raw?path=page.html", &by_script).await;
    assert_eq!(page.header("content-disposition"), None);
    let foreign = [("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "empty")];
    let page = get(&place, "/api/v1/files/raw?path=page.html", &foreign).await;
    assert_eq!(page.header("content-disposition"), Some("attachment"));
}

#[tokio::test]
async fn a_range_gives_a_part_and_one_outside_is_told() {
    let place = Place::new();
    let content: Vec<u8> = (0..300_000_u32).map(|number| (number % 256).to_le_bytes()[0]).collect();
    place.put("f", &content);
    let uri = "/api/v1/files/raw?path=f";
    let part = get(&place, uri, &[("range", "bytes=1000-250999")]).await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &content[1000..251_000]));
    assert_eq!(part.header("content-range"), Some("bytes 1000-250999/300000"));
    assert_eq!(part.header("content-length"), Some("250000"));
    let outside = get(&place, uri, &[("range", "bytes=300000-")]).await;
    assert_eq!(outside.error(), (416, "range_not_satisfiable".into()));
    assert_eq!(outside.header("content-range"), Some("bytes */300000"));
    let etag = part.header("etag").expect("a validator").to_string();
    let same = get(&place, uri, &[("range", "bytes=-5"), ("if-range", &etag)]).await;
    assert_eq!((same.status.as_u16(), same.body.len()), (206, 5));
    let other = get(&place, uri, &[("range", "bytes=-5"), ("if-range", "\"other\"")]).await;
    assert_eq!((other.status.as_u16(), other.body.len()), (200, 300_000));
    assert_eq!(get(&place, uri, &[("if-none-match", &etag)]).await.status, 304);
}

#[tokio::test]
async fn an_upload_is_streamed_and_atomic() {
    let place = Place::new();
    let chunk = Bytes::from(vec![3; 1 << 20]);
    let chunks = futures::stream::iter((0..20).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
    let uri = "/api/v1/files/raw?path=d/large&createDirs=true";
    let answer = put(&place, uri, &[], Body::from_stream(chunks)).await;
    assert_eq!(answer.json()["size"], 20 << 20, "more than the limit of other bodies");
    let etag = answer.header("etag").expect("a validator").to_string();
    let again = put(&place, "/api/v1/files/raw?path=d/large", &[("if-match", "\"x\"")], Body::from("new")).await;
    assert_eq!(again.error(), (409, "conflict".into()));
    let again = put(&place, "/api/v1/files/raw?path=d/large", &[("if-match", &etag)], Body::from("new")).await;
    assert_eq!(again.status, 200);
    let broken = futures::stream::iter([Ok(Bytes::from_static(b"half")), Err(std::io::Error::other("gone"))]);
    let answer = put(&place, "/api/v1/files/raw?path=d/large", &[], Body::from_stream(broken)).await;
    assert_eq!(answer.error(), (400, "validation_error".into()));
    assert_eq!(std::fs::read(place.file("d/large")).expect("there"), b"new");
    let huge = put(&place, "/api/v1/files/raw?path=x", &[("content-length", "99999999999")], Body::from("x")).await;
    assert_eq!(huge.error(), (413, "payload_too_large".into()));
    assert_eq!(std::fs::read_dir(place.file("d")).expect("folder").count(), 1);
}
