//! Python libraries with the real `python3 -m venv` and `pip`, through the real sandbox, from a folder of wheels.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../sandbox/place.rs"]
#[allow(dead_code, reason = "shared with the tests of the sandbox")]
mod place;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_server::config::parse_requirements;
use agent_server::provisioning::{Provisioning, ProvisioningError, PythonLibraries};
use agent_server::readiness::{self, Readiness};
use agent_server::sandbox::{ExecOutcome, Network, Sandbox};
use place::{Mode, Place};

/// Two environments are made, each with pip inside; a loaded machine takes a while.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes wheels by hand: a module `greeting` with a program `greet`, in two versions, and a module `extra`.
const WHEELS: &str = r#"
import sys, zipfile
def wheel(name, version, body, script=False):
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\ngreet = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{sys.argv[1]}/{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
for version in ("1.0", "2.0"):
    wheel("greeting", version, f"WORD = 'hello {version}'\ndef main():\n    print(WORD)\n", True)
wheel("extra", "1.0", "WORD = 'extra'\n")
"#;

struct World {
    place: Place,
    sandbox: Arc<dyn Sandbox>,
    readiness: Readiness,
}

impl World {
    /// A workspace with wheels and a `pip.conf` that allows nothing but them.
    async fn new() -> Self {
        let place = Place::new();
        let wheels = place.workspace().join("wheels");
        std::fs::create_dir(&wheels).unwrap();
        let made = Command::new("python3").args(["-c", WHEELS]).arg(&wheels).status().unwrap();
        assert!(made.success());
        std::fs::write(place.workspace().join("pip.conf"), "[global]\nno-index = true\nfind-links = wheels\n").unwrap();
        let mut settings = place.settings(Mode::Direct);
        settings.environment = settings.environment.with_python_libraries(place.workspace().to_str().unwrap());
        let sandbox = place::start(Mode::Direct, settings, Network::Inherit).await.unwrap();
        Self { place, sandbox: Arc::new(sandbox), readiness: Readiness::new() }
    }

    fn provisioning(&self, list: &str) -> Provisioning {
        let requirements = parse_requirements(list).unwrap();
        let system_path = std::env::var("PATH").unwrap();
        let python = PythonLibraries { requirements, system_path };
        Provisioning { root: self.place.workspace(), template: None, python }
    }

    /// Provides, and gives the steps that readiness showed.
    async fn provide(&self, list: &str) -> Result<Vec<String>, ProvisioningError> {
        let steps = Arc::new(Mutex::new(Vec::new()));
        let mut facts = self.readiness.subscribe();
        facts.mark_unchanged();
        let watched = Arc::clone(&steps);
        let watching = tokio::spawn(async move {
            while facts.changed().await.is_ok() {
                if let Some(readiness::Provisioning::Running(step)) = facts.borrow_and_update().provisioning.clone() {
                    watched.lock().unwrap().push(step);
                }
            }
        });
        let provisioning = self.provisioning(list);
        let run = provisioning.run(&self.sandbox, &self.readiness);
        let outcome = tokio::time::timeout(LIMIT, run).await.expect("in time");
        watching.abort();
        let steps = steps.lock().unwrap().clone();
        outcome.map(|()| steps)
    }

    async fn says(&self, command: &str) -> String {
        let finished = place::run(self.sandbox.as_ref(), command).await;
        assert_eq!(finished.outcome, ExecOutcome::Exited(0), "{command}: {finished:?}");
        finished.stdout.trim().to_owned()
    }

    fn environments(&self) -> Vec<PathBuf> {
        let folder = self.place.workspace().join(".boring-agent/python");
        let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| !path.is_symlink());
        found
    }
}

#[tokio::test]
async fn commands_find_the_libraries_and_what_they_install_themselves_through_restarts_and_new_lists() {
    let world = World::new().await;
    let steps = world.provide("greeting==1.0").await.unwrap();
    assert!(steps.contains(&"preparing 1 Python libraries".to_owned()) || steps.len() > 1, "{steps:?}");
    assert_eq!(world.says("python3 -c 'import greeting; print(greeting.WORD)'").await, "hello 1.0");
    assert_eq!(world.says("greet").await, "hello 1.0");
    let workspace = world.place.workspace();
    assert_eq!(
        world.says("python3 -c 'import sys; print(sys.prefix)'").await,
        workspace.join(".venv").display().to_string()
    );

    world.says("PIP_CONFIG_FILE=$PWD/pip.conf pip install --disable-pip-version-check extra").await;
    assert_eq!(world.says("python3 -c 'import extra; print(extra.WORD)'").await, "extra");
    let first = world.environments();
    assert_eq!(first.len(), 1);

    // A restart finds everything and changes nothing.
    let mark = first[0].join("complete");
    let before = std::fs::metadata(&mark).unwrap().modified().unwrap();
    let steps = world.provide("greeting==1.0").await.unwrap();
    assert!(!steps.iter().any(|step| step.contains("making") || step.contains("installing")), "{steps:?}");
    assert_eq!(std::fs::metadata(&mark).unwrap().modified().unwrap(), before);

    // Another list is another environment; the overlay keeps what was installed into it.
    world.provide("greeting>=2").await.unwrap();
    assert_eq!(world.says("greet").await, "hello 2.0");
    assert_eq!(
        world.says("python3 -c 'import extra, greeting; print(extra.WORD, greeting.WORD)'").await,
        "extra hello 2.0"
    );
    let second = world.environments();
    assert_eq!(second.len(), 1, "the old one is gone");
    assert_ne!(first, second);
    assert_eq!(std::fs::read_to_string(workspace.join(".boring-agent/.gitignore")).unwrap(), "*\n");
}

#[tokio::test]
async fn an_installation_that_was_cut_off_is_made_anew() {
    let world = World::new().await;
    // Cut while it runs: dropping the future ends the sandbox's command with all that it started.
    let provisioning = world.provisioning("greeting");
    let begun = async {
        place::until("an environment", || {
            let python = world.place.workspace().join(".boring-agent/python");
            python.is_dir() && std::fs::read_dir(python).unwrap().count() > 0
        })
        .await;
    };
    tokio::select! {
        outcome = provisioning.run(&world.sandbox, &world.readiness) => panic!("not cut off: {outcome:?}"),
        () = begun => {}
    }
    let idle = world.sandbox.clone();
    place::until("the command's end", || idle.running() == 0).await;
    assert!(!world.environments()[0].join("complete").exists());
    world.provide("greeting").await.unwrap();
    assert_eq!(world.says("greet").await, "hello 2.0");
    // An overlay whose Python is gone is repaired, too.
    std::fs::remove_dir_all(world.place.workspace().join(".venv/bin")).unwrap();
    world.provide("greeting").await.unwrap();
    assert_eq!(world.says("python3 -c 'import greeting; print(greeting.WORD)'").await, "hello 2.0");
}

#[tokio::test]
async fn a_library_that_does_not_exist_is_an_error_that_names_it_and_leaves_no_mark() {
    let world = World::new().await;
    let error = world.provide("no-such-library").await.unwrap_err();
    assert_eq!(error.reason(), "LibrariesFailed");
    assert_eq!(error.to_string(), "libraries: No matching distribution found for no-such-library");
    assert!(!world.environments()[0].join("complete").exists());
    world.provide("greeting").await.unwrap();
    assert_eq!(world.says("greet").await, "hello 2.0");
}

#[tokio::test]
async fn a_machine_without_python_says_what_to_install() {
    let world = World::new().await;
    let folder = world.place.folder.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let mut provisioning = world.provisioning("greeting");
    provisioning.python.system_path = folder.display().to_string();
    let error = provisioning.run(&world.sandbox, &world.readiness).await.unwrap_err();
    assert_eq!(error.to_string(), "libraries: python3 is not in PATH; install it with its module venv");
}
