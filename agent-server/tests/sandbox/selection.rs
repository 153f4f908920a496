//! Which mode serves, where bubblewrap is there and where it is not.

use std::path::Path;

use agent_server::config::{OnUnavailable, RuntimeMode};
use agent_server::runtime::RuntimeError;
use agent_server::runtime::local::LocalRuntime;
use agent_server::runtime::selection::Selection;
use agent_server::sandbox::limits::WantedLimits;
use agent_server::sandbox::{IsolationKind, Network, SandboxError};

use crate::place::Place;

/// A `PATH` with bash and nothing else.
fn path_without_bubblewrap(place: &Place) -> String {
    let folder = place.folder.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let bash = ["/bin/bash", "/usr/bin/bash"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    std::os::unix::fs::symlink(bash, folder.join("bash")).unwrap();
    folder.display().to_string()
}

fn runtime(place: &Place, path: String) -> LocalRuntime {
    LocalRuntime {
        root: place.workspace(),
        state_dir: place.folder.path().join("state"),
        secret_files: vec![place.folder.path().join("model-key")],
        command_environment_dir: None,
        command_files_dir: None,
        server_environment: vec![("PATH".into(), path.into())],
        in_pod: true,
        python_libraries: false,
        program: env!("CARGO_BIN_EXE_agent-server").into(),
        limits: WantedLimits::default().with_defaults(),
    }
}

fn selection(mode: Option<RuntimeMode>, on_unavailable: OnUnavailable) -> Selection {
    Selection { mode, network: Network::Inherit, on_unavailable }
}

#[tokio::test]
async fn without_a_name_the_strongest_mode_that_works_serves() {
    let place = Place::new();
    let here = runtime(&place, std::env::var("PATH").unwrap());
    let pair = selection(None, OnUnavailable::Fail).build(&here).await.unwrap();
    assert_eq!((pair.mode(), pair.degraded()), (RuntimeMode::Bubblewrap, None));
    assert_eq!(pair.workspace().shown_root(), "/workspace");
    pair.sandbox().stop_all().await;
    let without = runtime(&place, path_without_bubblewrap(&place));
    let pair = selection(None, OnUnavailable::Fail).build(&without).await.unwrap();
    assert_eq!((pair.mode(), pair.degraded()), (RuntimeMode::Landlock, None));
    assert_eq!(pair.sandbox().isolation().kind, IsolationKind::Landlock);
}

#[tokio::test]
async fn a_named_mode_never_changes_unless_that_is_permitted_and_then_it_is_told() {
    let place = Place::new();
    let without = runtime(&place, path_without_bubblewrap(&place));
    let named = Some(RuntimeMode::Bubblewrap);
    match selection(named, OnUnavailable::Fail).build(&without).await.err() {
        Some(RuntimeError::Sandbox(SandboxError::Unavailable(reason))) => {
            assert!(reason.contains("install the package `bubblewrap`"), "{reason}");
        }
        other => unreachable!("{other:?}"),
    }
    let pair = selection(named, OnUnavailable::Degrade).build(&without).await.unwrap();
    let degraded = pair.degraded().unwrap();
    assert_eq!((pair.mode(), degraded.from), (RuntimeMode::Landlock, RuntimeMode::Bubblewrap));
    assert!(degraded.reason.contains("install the package"), "{degraded:?}");
}
