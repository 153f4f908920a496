//! The command line of `operator gateway`. Every flag is an environment variable too.

use std::net::SocketAddr;

use clap::{ArgAction, Args};
use ipnet::IpNet;

use crate::config::{Logs, Place};

/// Flags of `operator gateway`.
#[derive(Args, Clone, Debug)]
pub struct GatewayArguments {
    /// Where the operator runs: the gateway's keys are there.
    #[command(flatten)]
    pub place: Place,
    /// How logs look; the access log has the target `access`.
    #[command(flatten)]
    pub logs: Logs,
    /// Address for callers. Plain HTTP: TLS ends in front of it.
    #[arg(long, env = "GATEWAY_LISTEN", default_value = "0.0.0.0:8000")]
    pub listen: SocketAddr,
    /// Address of health, readiness and metrics.
    #[arg(long, env = "GATEWAY_HEALTH_LISTEN", default_value = "0.0.0.0:8080")]
    pub health_listen: SocketAddr,
    /// Suffix of the host names of workspaces, such as agents.example.com for alice--team-a.agents.example.com.
    /// Without it workspaces are reached by path only.
    #[arg(long, env = "GATEWAY_DOMAIN", value_parser = domain)]
    pub domain: Option<String>,
    /// Address ranges of pods, comma-separated: nothing else is ever dialled.
    #[arg(long, env = "GATEWAY_POD_CIDRS", required = true, value_delimiter = ',')]
    pub pod_cidrs: Vec<IpNet>,
    /// Take tokens that were made for the API server itself too. Whoever runs a workspace could not use them elsewhere: they
    /// never reach a pod.
    #[arg(long, env = "GATEWAY_ACCEPT_CLUSTER_TOKENS", default_value_t = false, action = ArgAction::Set, value_name = "BOOL")]
    pub accept_cluster_tokens: bool,
    /// Connections of callers, at most.
    #[arg(long, env = "GATEWAY_MAX_CONNECTIONS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Requests that wait for their workspaces at once, at most.
    #[arg(long, env = "GATEWAY_MAX_HELD_REQUESTS", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub max_held_requests: u32,
    /// Bytes of a request's body, at most.
    #[arg(long, env = "GATEWAY_MAX_BODY_BYTES", default_value_t = 1 << 30)]
    pub max_body_bytes: u64,
    /// Seconds between "not ready" and the first refused connection at the end: load balancers need them to notice.
    #[arg(long, env = "GATEWAY_DRAIN_DELAY_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(0..=300))]
    pub drain_delay_seconds: u16,
    /// Seconds that open requests and streams get to end after that.
    #[arg(long, env = "GATEWAY_DRAIN_SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(0..=3600))]
    pub drain_seconds: u16,
}

fn domain(text: &str) -> Result<String, String> {
    let name = text.trim_matches('.').to_ascii_lowercase();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    // 63 for the label of the workspace, one dot, and 253 together.
    if name.is_empty() || name.len() > 189 || !name.bytes().all(plain) {
        return Err("a domain name of at most 189 characters, such as agents.example.com".to_owned());
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        gateway: GatewayArguments,
    }

    fn read(arguments: &[&str]) -> Result<GatewayArguments, String> {
        let all = ["operator"].into_iter().chain(arguments.iter().copied());
        Program::try_parse_from(all).map(|program| program.gateway).map_err(|error| error.to_string())
    }

    #[test]
    fn the_ranges_of_pods_are_required_and_read() {
        assert!(read(&[]).unwrap_err().contains("--pod-cidrs"));
        let arguments = read(&["--pod-cidrs", "10.244.0.0/16,fd00::/48"]).unwrap();
        assert_eq!(arguments.pod_cidrs, ["10.244.0.0/16".parse().unwrap(), "fd00::/48".parse::<IpNet>().unwrap()]);
        assert!(read(&["--pod-cidrs", "pods"]).is_err());
    }

    #[test]
    fn a_domain_is_written_as_it_is_compared() {
        let with = |domain| read(&["--pod-cidrs", "10.0.0.0/8", "--domain", domain]);
        assert_eq!(with(".Agents.Example.com").unwrap().domain.as_deref(), Some("agents.example.com"));
        assert!(with("https://agents.example.com").is_err());
    }
}
