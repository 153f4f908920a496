//! Entry point: reads the command line and prints generated documents.

use std::io::Write as _;

use agent_server::config::{Command, CommandLine, Document, reference};
use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    agent_server::sandbox::helper::run_if_requested();
    let line = CommandLine::parse();
    if let Some(Command::Gen { document }) = line.command {
        let text = match document {
            Document::Openapi => agent_server::http::openapi::generate()?,
            Document::Configuration => reference(),
        };
        std::io::stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    anyhow::bail!("serving is composed in the next change")
}
