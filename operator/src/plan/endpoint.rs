//! Where `agent.model.baseUrl` points, as far as a NetworkPolicy needs to know.

/// The place of a model endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service of this namespace of the cluster.
    Cluster {
        /// Namespace of the Service, and so of its pods.
        namespace: String,
    },
    /// A name or address outside of the cluster.
    Outside,
}

impl Endpoint {
    /// Reads the host of an `http` or `https` address. `own_namespace` is where a name without a dot is looked up.
    ///
    /// Cluster names are `service`, `service.namespace.svc` and whatever follows (`.cluster.local`). `service.namespace` alone
    /// cannot be told from a public name and counts as one.
    pub fn parse(url: &str, own_namespace: &str) -> Option<Self> {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"))?;
        let authority = rest.split('/').next().filter(|authority| !authority.is_empty() && !authority.contains('@'))?;
        if authority.starts_with('[') {
            return authority.contains(']').then_some(Self::Outside);
        }
        let (host, port) = authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port)));
        if host.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return None;
        }
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let labels: Vec<&str> = host.split('.').collect();
        Some(match labels.as_slice() {
            ["localhost"] => Self::Outside,
            [_] => Self::Cluster { namespace: own_namespace.to_owned() },
            [_, namespace, "svc", ..] => Self::Cluster { namespace: (*namespace).to_owned() },
            _ => Self::Outside,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_are_told_from_public_names() {
        let cluster = |namespace: &str| Some(Endpoint::Cluster { namespace: namespace.to_owned() });
        assert_eq!(Endpoint::parse("http://model.fakes.svc:8080", "team-a"), cluster("fakes"));
        assert_eq!(Endpoint::parse("https://model.fakes.svc.cluster.local/v1", "team-a"), cluster("fakes"));
        assert_eq!(Endpoint::parse("http://model:8080", "team-a"), cluster("team-a"));
        assert_eq!(Endpoint::parse("https://api.anthropic.com", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("https://svc.example.com", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("http://[2001:db8::1]:80/", "team-a"), Some(Endpoint::Outside));
        assert_eq!(Endpoint::parse("http://203.0.113.7:80/", "team-a"), Some(Endpoint::Outside));
    }

    #[test]
    fn addresses_without_a_usable_host_are_refused() {
        for url in
            ["ftp://x", "http://", "http://:80", "http://user:secret@host/", "http://host:port/", "http://host:99999/"]
        {
            assert_eq!(Endpoint::parse(url, "team-a"), None, "{url}");
        }
    }
}
