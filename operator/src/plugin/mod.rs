//! `kubectl aw`: workspaces at a terminal. The same program as the operator, under the name `kubectl-aw`.
//!
//! Owns the command line and the order of calls. Reads workspaces with the caller's own rights on the cluster; everything
//! else goes through the gateway with the caller's own token, so the plugin can do nothing that its user could not.

mod show;
mod through;

use std::{io::Write, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use jiff::Timestamp;
use kube::{Client, Config};

use crate::{
    cluster::{Calls, ClusterError, account_token, get_workspace, list_workspaces},
    crd::AgentWorkspace,
};
use through::Through;

/// Audience of tokens for the gateway.
const AUDIENCE: &str = "agents.boring.dev/gateway";

/// Agent workspaces at a terminal.
#[derive(Parser, Debug)]
#[command(name = "kubectl-aw", bin_name = "kubectl aw", version, about, max_term_width = 120)]
pub struct PluginArguments {
    #[command(subcommand)]
    command: Command,
    /// Namespace; by default that of the current context.
    #[arg(long, short, global = true)]
    namespace: Option<String>,
    /// File with a token for the gateway, - for standard input; by default the token of the kubeconfig, which the gateway must be
    /// told to accept.
    #[arg(long, env = "AGENT_WORKSPACE_TOKEN_FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Ask for a token of this service account instead (needs the right to create its tokens).
    #[arg(long, global = true, conflicts_with = "token_file")]
    service_account: Option<String>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List workspaces.
    List(ListArguments),
    /// Tell what a workspace does and why.
    Status {
        /// Name of the workspace.
        name: String,
    },
    /// Print a link that signs one browser in, once and within a minute.
    Open {
        /// Name of the workspace.
        name: String,
    },
    /// Start a workspace, whatever stopped it, and wait until it serves.
    Start {
        /// Name of the workspace.
        name: String,
    },
    /// Stop a workspace until somebody starts it.
    Stop {
        /// Name of the workspace.
        name: String,
    },
    /// Use the workspace without doing anything: its idle time begins anew.
    Extend {
        /// Name of the workspace.
        name: String,
    },
    /// Send one message and stream the answer.
    Chat {
        /// Name of the workspace.
        name: String,
        /// The message.
        message: String,
        /// Session to go on with, or a name for a new one.
        #[arg(long, default_value = "terminal")]
        session: String,
    },
}

#[derive(Args, Debug)]
struct ListArguments {
    /// Of all namespaces.
    #[arg(long, short = 'A')]
    all_namespaces: bool,
}

/// Why the plugin could not do it.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The API server.
    #[error("the cluster did not answer as hoped")]
    Cluster(#[from] ClusterError),
    /// No such workspace.
    #[error("there is no AgentWorkspace {name} in namespace {namespace}")]
    NoWorkspace {
        /// Namespace asked for.
        namespace: String,
        /// Name asked for.
        name: String,
    },
    /// It has no address.
    #[error(
        "AgentWorkspace {0} has no address: the cluster has no gateway, or the workspace is not exposed through it"
    )]
    NoAddress(String),
    /// A file with a token.
    #[error("cannot read the token")]
    TokenFile(#[source] std::io::Error),
    /// No token to show.
    #[error(
        "no token for the gateway: the kubeconfig has none that can be shown to it. Use --service-account NAME, or kubectl create token NAME --audience agents.boring.dev/gateway | kubectl aw --token-file - …"
    )]
    NoToken,
    /// The gateway, or the way to it.
    #[error("the gateway does not answer")]
    Unreachable(#[source] reqwest::Error),
    /// The gateway or the workspace refused.
    #[error("{status}: {message}")]
    Refused {
        /// Status code.
        status: u16,
        /// What was said.
        message: String,
    },
    /// The answer broke off, or reported an error.
    #[error("the answer ended early: {0}")]
    Broken(String),
    /// Standard output.
    #[error("cannot write")]
    Output(#[from] std::io::Error),
}

impl PluginError {
    /// Stable word.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Cluster(error) => error.reason(),
            Self::NoWorkspace { .. } => "NotFound",
            Self::NoAddress(_) => "NoAddress",
            Self::TokenFile(_) => "TokenUnreadable",
            Self::NoToken => "NoToken",
            Self::Unreachable(_) => "Unreachable",
            Self::Refused { .. } => "Refused",
            Self::Broken(_) => "Broken",
            Self::Output(_) => "OutputFailed",
        }
    }
}

/// What every command needs.
struct Terminal<'a> {
    arguments: &'a PluginArguments,
    config: &'a Config,
    client: Client,
    calls: Calls,
}

/// Runs the command and writes to `output`.
pub async fn run(
    arguments: &PluginArguments,
    config: &Config,
    client: Client,
    calls: Calls,
    output: &mut impl Write,
) -> Result<(), PluginError> {
    let terminal = Terminal { arguments, config, client, calls };
    match &arguments.command {
        Command::List(list) => {
            let namespace = terminal.namespace();
            let namespace = (!list.all_namespaces).then_some(namespace.as_str());
            let found = list_workspaces(terminal.client.clone(), &terminal.calls, namespace).await?;
            output.write_all(show::table(&found, list.all_namespaces, Timestamp::now()).as_bytes())?;
        }
        Command::Status { name } => {
            let workspace = terminal.workspace(name).await?;
            output.write_all(show::status(&workspace).as_bytes())?;
        }
        Command::Open { name } => writeln!(output, "{}", terminal.through(name).await?.link().await?)?,
        Command::Start { name } => writeln!(output, "{name}: {}", terminal.through(name).await?.ask("start").await?)?,
        Command::Stop { name } => writeln!(output, "{name}: {}", terminal.through(name).await?.ask("stop").await?)?,
        Command::Extend { name } => {
            terminal.through(name).await?.touch().await?;
            writeln!(output, "the idle time of {name} begins anew")?;
        }
        Command::Chat { name, message, session } => {
            terminal.through(name).await?.chat(session, message, output).await?;
        }
    }
    Ok(())
}

impl Terminal<'_> {
    fn namespace(&self) -> String {
        self.arguments.namespace.clone().unwrap_or_else(|| self.config.default_namespace.clone())
    }

    async fn workspace(&self, name: &str) -> Result<AgentWorkspace, PluginError> {
        let namespace = self.namespace();
        let found = get_workspace(self.client.clone(), &self.calls, &namespace, name).await?;
        found.ok_or_else(|| PluginError::NoWorkspace { namespace, name: name.to_owned() })
    }

    /// The workspace's address, with a token for the gateway.
    async fn through(&self, name: &str) -> Result<Through, PluginError> {
        let workspace = self.workspace(name).await?;
        let url = workspace.status.and_then(|status| status.url);
        let url = url.ok_or_else(|| PluginError::NoAddress(name.to_owned()))?;
        Through::new(&url, self.token().await?)
    }

    async fn token(&self) -> Result<String, PluginError> {
        use secrecy::ExposeSecret;
        if let Some(path) = &self.arguments.token_file {
            let text = if path.as_os_str() == "-" {
                std::io::read_to_string(std::io::stdin())
            } else {
                std::fs::read_to_string(path)
            };
            return text.map(|text| text.trim().to_owned()).map_err(PluginError::TokenFile);
        }
        if let Some(account) = &self.arguments.service_account {
            let namespace = self.namespace();
            let made = account_token(self.client.clone(), &self.calls, &namespace, account, AUDIENCE).await?;
            return made.ok_or(PluginError::NoToken);
        }
        let token = self.config.auth_info.token.as_ref().map(|token| token.expose_secret().to_owned());
        token.ok_or(PluginError::NoToken)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_the_audience_is_the_gateways() {
        PluginArguments::command().debug_assert();
        let chat = PluginArguments::try_parse_from(["kubectl-aw", "chat", "api", "hello", "-n", "team-a"]).unwrap();
        assert_eq!(chat.namespace.as_deref(), Some("team-a"));
        assert_eq!(AUDIENCE, "agents.boring.dev/gateway");
        let both = ["kubectl-aw", "open", "api", "--token-file", "a", "--service-account", "b"];
        assert!(PluginArguments::try_parse_from(both).is_err());
    }
}
