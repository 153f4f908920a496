//! Which workspace a request is for: by host name or by path.
//!
//! Pure. Owns both forms and what they refuse. Must not know whether the workspace exists.

use axum::http::{Uri, uri::PathAndQuery};

use crate::cluster::WorkspaceKey;

/// Longest label of a host name.
const LABEL_LENGTH: usize = 63;

/// How the caller named the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `{name}--{namespace}.domain`: an origin of its own, so browsers and cookies are welcome.
    Host,
    /// `/w/{namespace}/{name}/…`: all workspaces share an origin, so bearer tokens only.
    Path,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The workspace.
    pub key: WorkspaceKey,
    /// How it was named.
    pub form: Form,
    /// What is left for the workspace: path and query.
    pub rest: PathAndQuery,
}

/// Why a request names no workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Neither form matches.
    #[error("no workspace is addressed: use its host name, or /w/{{namespace}}/{{name}}/…")]
    Unaddressed,
    /// A name or namespace that no object can have.
    #[error("the address holds no valid name and namespace of a workspace")]
    BadName,
    /// Two workspaces of long names cannot be told apart by host name.
    #[error("name and namespace together do not fit in a host name: use /w/{{namespace}}/{{name}}/…")]
    LongLabel,
    /// The target of the request line names another host than the Host header.
    #[error("the request names two different hosts")]
    TwoHosts,
}

/// Reads the target of a request. `domain` is the suffix of host names, in lower case, without a leading dot.
pub fn route(domain: Option<&str>, host: Option<&str>, uri: &Uri) -> Result<Route, RouteError> {
    let host = host.map(host_name);
    if let (Some(authority), Some(host)) = (uri.authority(), &host)
        && host_name(authority.as_str()) != *host
    {
        return Err(RouteError::TwoHosts);
    }
    let label = match (domain, &host) {
        (Some(domain), Some(host)) => host.strip_suffix(domain).and_then(|label| label.strip_suffix('.')),
        _ => None,
    };
    match label {
        Some(label) => by_host(label, uri),
        None => by_path(uri),
    }
}

/// The name in a Host header or authority: without port and final dot, in lower case.
fn host_name(authority: &str) -> String {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

fn by_host(label: &str, uri: &Uri) -> Result<Route, RouteError> {
    if label.len() > LABEL_LENGTH {
        return Err(RouteError::LongLabel);
    }
    let (name, namespace) = label.split_once("--").ok_or(RouteError::BadName)?;
    let rest = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Ok(Route { key: key(namespace, name)?, form: Form::Host, rest })
}

fn by_path(uri: &Uri) -> Result<Route, RouteError> {
    let path = uri.path().strip_prefix("/w/").ok_or(RouteError::Unaddressed)?;
    let mut parts = path.splitn(3, '/');
    let (Some(namespace), Some(name)) = (parts.next(), parts.next()) else { return Err(RouteError::Unaddressed) };
    let rest = parts.next().unwrap_or_default();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // A part of a valid target with a slash in front is a valid target.
    let rest = PathAndQuery::try_from(format!("/{rest}{query}")).map_err(|_| RouteError::BadName)?;
    Ok(Route { key: key(namespace, name)?, form: Form::Path, rest })
}

fn key(namespace: &str, name: &str) -> Result<WorkspaceKey, RouteError> {
    if !is_label(namespace) || !is_label(name) || name.contains("--") {
        return Err(RouteError::BadName);
    }
    Ok(WorkspaceKey { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// RFC 1123, as Kubernetes reads it.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LABEL_LENGTH).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(host: &str, target: &str) -> Result<(String, Form, String), RouteError> {
        let route = route(Some("agents.example.com"), Some(host), &target.parse().unwrap())?;
        Ok((route.key.to_string(), route.form, route.rest.to_string()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "compared with what the function under test returns")]
    fn found(key: &str, form: Form, rest: &str) -> Result<(String, Form, String), RouteError> {
        Ok((key.to_owned(), form, rest.to_owned()))
    }

    #[test]
    fn a_host_name_is_split_at_the_first_double_dash() {
        let expected = found("team-a/alice-api", Form::Host, "/api/v1/tree?path=.");
        for host in ["alice-api--team-a.agents.example.com", "Alice-API--team-a.AGENTS.example.com.:8443"] {
            assert_eq!(read(host, "/api/v1/tree?path=."), expected);
        }
        // A namespace may hold a double dash, a workspace may not.
        assert_eq!(read("alice--team--a.agents.example.com", "/"), found("team--a/alice", Form::Host, "/"));
    }

    #[test]
    fn a_path_names_namespace_and_name_and_the_prefix_is_removed() {
        let host = "agents.example.com";
        let expected = found("team-a/alice", Form::Path, "/health?a=b");
        assert_eq!(read(host, "/w/team-a/alice/health?a=b"), expected);
        assert_eq!(read(host, "/w/team-a/alice"), found("team-a/alice", Form::Path, "/"));
        assert_eq!(read("10.0.0.7:8000", "/w/team-a/alice//x"), found("team-a/alice", Form::Path, "//x"));
        let without_domain = route(None, Some("alice--a.example.com"), &"/w/a/bob/".parse().unwrap());
        assert_eq!(without_domain.map(|route| route.key.to_string()), Ok("a/bob".to_owned()));
    }

    #[test]
    fn a_path_at_the_host_of_a_workspace_is_that_workspaces_own() {
        let expected = found("team-a/alice", Form::Host, "/w/team-b/bob/x");
        assert_eq!(read("alice--team-a.agents.example.com", "/w/team-b/bob/x"), expected);
    }

    #[test]
    fn what_no_object_can_be_called_is_refused() {
        let long = format!("{}--{}.agents.example.com", "a".repeat(40), "b".repeat(30));
        assert_eq!(read(&long, "/"), Err(RouteError::LongLabel));
        for host in ["alice.agents.example.com", "a.b--c.agents.example.com", "--team.agents.example.com"] {
            assert_eq!(read(host, "/"), Err(RouteError::BadName), "{host}");
        }
        for target in ["/w/team-a/Alice/", "/w/team-a/%61lice/", "/w//alice/", "/w/team-a/../x", "/w/a/b--c/"] {
            assert_eq!(read("agents.example.com", target), Err(RouteError::BadName), "{target}");
        }
        for target in ["/", "/w", "/w/team-a", "/api/v1/tree"] {
            assert_eq!(read("agents.example.com", target), Err(RouteError::Unaddressed), "{target}");
        }
    }

    #[test]
    fn a_request_line_for_another_host_than_the_header_is_refused() {
        let target = "http://bob--team-a.agents.example.com/";
        assert_eq!(read("alice--team-a.agents.example.com", target), Err(RouteError::TwoHosts));
        assert_eq!(read("bob--team-a.agents.example.com", target), found("team-a/bob", Form::Host, "/"));
    }
}
