//! The `OpenAPI` document: its head, and the route that serves the checked-in copy.
//!
//! The document is made from the route list by `agent-server gen openapi`; a test compares it with `openapi.json`.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;

/// The one error shape, for the document.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    error: ErrorMember,
}

/// Member of [`ErrorBody`]. Some codes carry more members, such as `currentEtag` or `retryAfter`.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorMember {
    /// Stable word.
    code: String,
    /// For people.
    message: String,
    /// The offending field of body or query.
    field: Option<String>,
}

/// Head of the document.
#[derive(OpenApi)]
#[openapi(
    info(title = "Agent server", description = "Files, chat and lifecycle of one agent workspace"),
    components(schemas(ErrorBody)),
    security(("bearer" = [])),
    modifiers(&BearerScheme)
)]
pub struct Document;

struct BearerScheme;

impl Modify for BearerScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// The document as it is checked in.
pub const CHECKED_IN: &str = include_str!("../../openapi.json");

/// Makes the document from the route list; pretty JSON with a line end.
pub fn generate() -> Result<String, serde_json::Error> {
    let document = super::router::documented().into_openapi();
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The routes of this module.
pub fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(openapi))
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "runtime",
    responses((status = 200, description = "OpenAPI 3.1 document", content_type = "application/json")))]
async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], CHECKED_IN).into_response()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checked_in_document_is_the_generated_one() {
        let generated = super::generate().expect("serialises");
        assert!(
            generated == super::CHECKED_IN,
            "run `cargo run -p agent-server -- gen openapi > agent-server/openapi.json`"
        );
    }

    /// Rows `| `METHOD /path` | `module::test` |` of the last table of the contract.
    fn routes_and_tests(contract: &str) -> Vec<(String, String)> {
        let (_, table) = contract.split_once("## Routes and their tests").expect("the table");
        let cells = |line: &str| -> Option<(String, String)> {
            let mut cells = line.strip_prefix("| `")?.split('`');
            Some((cells.next()?.to_string(), cells.nth(1)?.to_string()))
        };
        table.lines().filter_map(cells).collect()
    }

    #[test]
    fn every_route_stands_in_the_contract_with_a_test_that_exists() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let contract = std::fs::read_to_string(root.join("../docs/contract.md")).expect("docs/contract.md");
        let document: serde_json::Value = serde_json::from_str(super::CHECKED_IN).expect("JSON");
        let mut routes = std::collections::BTreeSet::new();
        for (path, methods) in document["paths"].as_object().expect("paths") {
            let methods = methods.as_object().expect("methods").keys();
            let is_method = |name: &&String| matches!(name.as_str(), "get" | "put" | "post" | "patch" | "delete");
            routes.extend(methods.filter(is_method).map(|method| format!("{} {path}", method.to_uppercase())));
        }
        let mut shown = std::collections::BTreeSet::new();
        for (route, test) in routes_and_tests(&contract) {
            let (module, name) = test.split_once("::").expect("module and test");
            let file = root.join(format!("src/http/tests/{module}.rs"));
            let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{} of {route}", file.display()));
            assert!(text.contains(&format!("fn {name}(")), "{route}: no test {test}");
            assert!(shown.insert(route.clone()), "{route} stands twice");
        }
        assert_eq!(routes, shown, "the routes of the document and of docs/contract.md");
    }
}
