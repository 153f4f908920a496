//! `/tree`, `/stat`, `/files/search` and `/files/grep`.

use serde_json::{Value, json};

use super::Place;

fn paths(tree: &Value) -> Vec<&str> {
    tree["entries"].as_array().expect("entries").iter().map(|entry| entry["path"].as_str().expect("text")).collect()
}

#[tokio::test]
async fn a_listing_has_names_kinds_sizes_and_marks() {
    let place = Place::new();
    place.put("d/f", "x");
    place.put("a.txt", "four");
    place.put("node_modules/x", "x");
    place.put(".gitignore", "node_modules");
    std::os::unix::fs::symlink("a.txt", place.file("link")).expect("linked");
    let tree = place.get("/api/v1/tree").await.json();
    assert_eq!(paths(&tree), ["d", "node_modules", ".gitignore", "a.txt", "link"]);
    assert_eq!((&tree["truncated"], tree.get("nextCursor")), (&json!(false), None));
    let text = &tree["entries"][3];
    let expected = json!({"name": "a.txt", "path": "a.txt", "kind": "file", "size": 4, "mtimeMs": text["mtimeMs"]});
    assert_eq!(*text, expected);
    assert_eq!(tree["entries"][1]["ignored"], true);
    assert_eq!(tree["entries"][4]["kind"], "symlink");
    let below = place.get("/api/v1/tree?path=d").await.json();
    assert_eq!((below["entries"][0]["name"].as_str(), paths(&below)), (Some("f"), vec!["d/f"]));
}

#[tokio::test]
async fn pages_join_to_the_whole_listing() {
    let place = Place::new();
    for number in 0..25 {
        place.put(&format!("d{}/f{number}", number % 5), "x");
        place.put(&format!("g{number}"), "x");
    }
    for query in ["", "recursive=true&", "recursive=true&depth=1&"] {
        let whole = place.get(&format!("/api/v1/tree?{query}limit=10000")).await.json();
        for limit in [1, 7, 30] {
            let (mut joined, mut cursor) = (Vec::new(), String::new());
            loop {
                let page = place.get(&format!("/api/v1/tree?{query}limit={limit}{cursor}")).await.json();
                joined.extend(page["entries"].as_array().expect("entries").clone());
                if page["truncated"] == false {
                    break;
                }
                cursor = format!("&cursor={}", page["nextCursor"].as_str().expect("a cut page has a cursor"));
            }
            assert_eq!(Value::from(joined), whole["entries"], "{query} {limit}");
        }
    }
    let foreign = place.get("/api/v1/tree?path=d1&recursive=true&cursor=ZmcwMQ").await;
    assert_eq!(foreign.error(), (400, "validation_error".into()), "a cursor of another listing");
}

#[tokio::test]
async fn a_recursive_listing_hides_what_is_ignored_unless_asked() {
    let place = Place::new();
    for file in ["src/a.rs", "target/x", ".git/HEAD", ".env"] {
        place.put(file, "x");
    }
    place.put(".gitignore", "target\n");
    let seen = place.get("/api/v1/tree?recursive=true").await.json();
    assert_eq!(paths(&seen), ["src", "src/a.rs", ".env", ".gitignore"]);
    let all = place.get("/api/v1/tree?recursive=true&hidden=true").await.json();
    assert_eq!(paths(&all), [".git", "src", "src/a.rs", "target", "target/x", ".env", ".gitignore"]);
}

#[tokio::test]
async fn stat_tells_kind_validator_and_target() {
    let place = Place::new();
    place.put("f", "x");
    std::os::unix::fs::symlink("../out", place.file("link")).expect("linked");
    let file = place.get("/api/v1/stat?path=f").await.json();
    assert_eq!((file["kind"].as_str(), file["size"].as_u64()), (Some("file"), Some(1)));
    assert_eq!(file["etag"], place.get("/api/v1/files?path=f").await.json()["etag"]);
    let link = place.get("/api/v1/stat?path=link").await.json();
    assert_eq!((link["kind"].as_str(), link["target"].as_str()), (Some("symlink"), Some("../out")));
    assert_eq!(place.get("/api/v1/stat?path=.").await.json()["kind"], "dir");
}

#[tokio::test]
async fn names_and_contents_are_searched() {
    let place = Place::new();
    place.put("src/main.rs", "fn main() {\n    (needle)\n}\n");
    place.put("docs/Main.md", "Needle");
    place.put("docs/.hidden-main", "x");
    let search = async |query: &str| place.get(&format!("/api/v1/files/search?q={query}")).await.json();
    assert_eq!(search("main").await, json!({"results": ["docs/Main.md", "src/main.rs"], "truncated": false}));
    assert_eq!(search("main%20src").await["results"], json!(["src/main.rs"]));
    assert_eq!(search("**%2F*.md").await["results"], json!(["docs/Main.md"]));
    assert_eq!(search("main&limit=1").await, json!({"results": ["docs/Main.md"], "truncated": true}));
    assert_eq!(search("hidden&hidden=true").await["results"], json!(["docs/.hidden-main"]));
    let grep = async |query: &str| place.get(&format!("/api/v1/files/grep?q={query}")).await.json();
    let found = json!({"matches": [{"path": "src/main.rs", "line": 2, "text": "    (needle)"}], "truncated": false});
    assert_eq!(grep("(needle").await, found);
    assert_eq!(grep("^%5CW*needle&regex=true").await, found);
    assert_eq!(grep("needle&ignoreCase=true&glob=*.md").await["matches"][0]["path"], "docs/Main.md");
    assert_eq!(grep("needle&ignoreCase=true&limit=1").await["truncated"], true);
}
