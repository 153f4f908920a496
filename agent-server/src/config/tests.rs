//! Tests of precedence, checks and redaction.

use std::path::Path;
use std::time::Duration;

use super::{Arguments, ConfigError, KeySource, ModelPrice, Surroundings, load, parse_requirements, resolve};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("folder");
        std::fs::create_dir(dir.path().join("work")).expect("folder");
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn surroundings(&self) -> Surroundings {
        let variables = [("HOME", self.path().join("home").display().to_string())];
        Surroundings {
            current_dir: self.path().join("work"),
            variables: variables.into_iter().map(|(name, value)| (name.to_string(), value)).collect(),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "every option is optional")]
fn text(value: &str) -> Option<String> {
    Some(value.into())
}

fn faults(error: &ConfigError) -> Vec<&str> {
    error.0.iter().map(|fault| fault.name.as_str()).collect()
}

#[test]
fn defaults_are_loopback_a_generated_token_and_a_state_folder_named_by_the_path() {
    let place = Place::new();
    let config = resolve(&Arguments::default(), &place.surroundings()).expect("valid");
    assert!(config.host.is_loopback());
    assert_eq!((config.port, config.metrics_port), (8787, None));
    assert_eq!(config.workspace_root, place.path().join("work").canonicalize().expect("real"));
    assert_eq!(config.workspace_id.len(), 16);
    assert_eq!(
        config.state_dir.strip_prefix(place.path().canonicalize().expect("real")).expect("below"),
        Path::new("home/.local/state/boring-agent").join(&config.workspace_id)
    );
    assert!(config.authentication.generated);
    assert_eq!(config.authentication.static_token_file, Some(config.state_dir.join("token")));
}

#[test]
fn all_faults_are_told_at_once() {
    let place = Place::new();
    let arguments = Arguments {
        mode: text("vercel-sandbox"),
        host: text("nowhere"),
        port: text("70000"),
        workspace_id: text("../x"),
        sandbox_network: text("none"),
        sandbox_on_unavailable: text("ignore"),
        limit_timeout_seconds: text("0"),
        limit_processes: text("1"),
        limit_memory_bytes: text("1G"),
        stop_grace_seconds: text("soon"),
        model_provider: text("acme"),
        model_base_url: text("ftp://x"),
        system_prompt_file: text("missing.md"),
        log: text("=,="),
        ..Arguments::default()
    };
    let error = resolve(&arguments, &place.surroundings()).expect_err("invalid");
    assert_eq!(
        faults(&error),
        [
            "--mode",
            "--sandbox-network",
            "--sandbox-on-unavailable",
            "--limit-timeout-seconds",
            "--limit-processes",
            "--limit-memory-bytes",
            "--host",
            "--port",
            "--workspace-id",
            "--stop-grace-seconds",
            "--model-provider",
            "--model-base-url",
            "--system-prompt-file",
            "--log"
        ]
    );
}

#[test]
fn the_options_of_commands_fit_together() {
    use super::{OnUnavailable, RuntimeMode};
    use crate::sandbox::Network;
    let place = Place::new();
    let resolved = |mode: Option<&str>, network: &str, action: &str| {
        let arguments = Arguments {
            mode: mode.map(String::from),
            sandbox_network: text(network),
            sandbox_on_unavailable: text(action),
            limit_processes: text("40"),
            ..Arguments::default()
        };
        resolve(&arguments, &place.surroundings())
    };
    let config = resolved(Some("local"), "isolated", "degrade").expect("valid");
    assert_eq!(
        (config.mode, config.network, config.on_unavailable, config.limits.processes),
        (Some(RuntimeMode::Bubblewrap), Network::Isolated, OnUnavailable::Degrade, Some(40))
    );
    let config = resolved(None, "isolated", "fail").expect("valid");
    assert_eq!((config.mode, config.network), (None, Network::Isolated));
    let error = resolved(Some("direct"), "isolated", "degrade").expect_err("refused");
    assert_eq!(faults(&error), ["--sandbox-network", "--sandbox-on-unavailable"]);
}

#[test]
fn an_address_that_others_reach_needs_a_token_source() {
    let place = Place::new();
    let open = Arguments { host: text("0.0.0.0"), ..Arguments::default() };
    let error = resolve(&open, &place.surroundings()).expect_err("refused");
    assert_eq!(faults(&error), ["--host"]);
    let token = place.path().join("token");
    std::fs::write(&token, "t").expect("written");
    let closed = Arguments { token_file: text(token.to_str().expect("text")), ..open };
    let config = resolve(&closed, &place.surroundings()).expect("valid");
    assert!(!config.authentication.generated);
}

#[test]
fn a_keys_file_needs_an_audience() {
    let place = Place::new();
    let arguments = Arguments { token_keys_file: text("keys"), host: text("0.0.0.0"), ..Arguments::default() };
    let error = resolve(&arguments, &place.surroundings()).expect_err("refused");
    assert_eq!(faults(&error), ["--token-audience"]);
}

#[test]
fn a_state_folder_inside_or_around_the_workspace_is_refused_even_through_a_link() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.path().join("work"), place.path().join("link")).expect("link");
    for state in ["state", "../link/state", "..", "../work"] {
        let arguments = Arguments { state_dir: text(state), ..Arguments::default() };
        let error = resolve(&arguments, &place.surroundings()).expect_err(state);
        assert_eq!(faults(&error), ["--state-dir"], "{state}");
    }
}

#[test]
fn the_file_fills_only_what_flags_and_environment_left_open() {
    let place = Place::new();
    let file = place.path().join("config.toml");
    std::fs::write(&file, "port = 9000\nmodel = \"from-file\"\npublic_hosts = [\"A.example\", \"b.example\"]\n")
        .expect("written");
    let arguments = Arguments { config: Some(file), model: text("from-flag"), ..Arguments::default() };
    let config = load(arguments, &place.surroundings()).expect("valid");
    assert_eq!((config.port, config.model.id.as_deref()), (9000, Some("from-flag")));
    assert_eq!(config.public_hosts, ["a.example", "b.example"]);
}

#[test]
fn an_unknown_name_in_the_file_and_a_missing_named_file_are_faults() {
    let place = Place::new();
    let file = place.path().join("config.toml");
    std::fs::write(&file, "prot = 9000\n").expect("written");
    let arguments = Arguments { config: Some(file), port: text("x"), ..Arguments::default() };
    let error = load(arguments, &place.surroundings()).expect_err("invalid");
    assert_eq!(error.0.len(), 2);
    assert!(error.0[0].message.contains("prot"), "{error}");
    let missing = Arguments { config: Some(place.path().join("none.toml")), ..Arguments::default() };
    assert_eq!(faults(&load(missing, &place.surroundings()).expect_err("invalid")), ["--config"]);
}

#[test]
fn keys_of_the_environment_are_held_but_never_printed() {
    let place = Place::new();
    let mut surroundings = place.surroundings();
    surroundings.variables.insert("ANTHROPIC_API_KEY".into(), "sk-very-secret".into());
    surroundings.variables.insert("GIT_CONFIG_COUNT".into(), "1".into());
    surroundings.variables.insert("GIT_DIR".into(), "/x".into());
    let config =
        resolve(&Arguments { stop_grace_seconds: text("60"), ..Arguments::default() }, &surroundings).expect("valid");
    assert!(matches!(config.model.key, KeySource::Value(_)));
    assert_eq!(config.stop_grace, Some(Duration::from_mins(1)));
    assert_eq!(config.commands.git.keys().collect::<Vec<_>>(), ["GIT_CONFIG_COUNT"]);
    let printed = serde_json::to_string(&config).expect("json") + &format!("{config:?}");
    assert!(!printed.contains("very-secret") && printed.contains("[redacted]"), "{printed}");
}

#[test]
fn the_reference_names_every_variable_of_the_contract() {
    let reference = super::reference();
    for name in [
        "MODE",
        "HOST",
        "PORT",
        "METRICS_PORT",
        "WORKSPACE_ROOT",
        "STATE_DIR",
        "WORKSPACE_ID",
        "POD_UID",
        "TOKEN_KEYS_FILE",
        "TOKEN_AUDIENCE",
        "STOP_GRACE_SECONDS",
        "MODEL_PROVIDER",
        "MODEL",
        "MODEL_BASE_URL",
        "MODEL_PRICES",
        "SYSTEM_PROMPT_FILE",
        "TEMPLATE_PATH",
        "PYTHON_PACKAGES",
        "SETTINGS_FILE",
        "COMMAND_ENVIRONMENT_DIR",
        "COMMAND_FILES_DIR",
        "SANDBOX_NETWORK",
        "SANDBOX_ON_UNAVAILABLE",
        "LIMIT_TIMEOUT_SECONDS",
        "LIMIT_WORKSPACE_MEMORY_BYTES",
    ] {
        assert!(reference.contains(&format!("`BORING_AGENT_{name}`")), "{name}");
    }
    assert!(reference.contains("`ANTHROPIC_API_KEY_FILE`") && reference.contains("`OPENAI_API_KEY_FILE`"));
}

#[test]
fn the_checked_in_reference_is_the_generated_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let checked_in = std::fs::read_to_string(path).expect("docs/configuration.md");
    assert_eq!(checked_in, super::reference(), "run `agent-server gen configuration > docs/configuration.md`");
}

#[test]
fn the_openai_wire_needs_a_model_and_its_key_only_where_one_is_due() {
    let place = Place::new();
    let resolved = |url: Option<&str>, file: Option<&str>, variable: Option<&str>| {
        let mut surroundings = place.surroundings();
        surroundings.variables.insert("ANTHROPIC_API_KEY".into(), "of-another".into());
        surroundings.variables.extend(variable.map(|value| ("OPENAI_API_KEY".into(), value.into())));
        let arguments = Arguments {
            model_provider: text("openai"),
            model: text("m"),
            model_base_url: url.map(str::to_owned),
            openai_api_key_file: file.map(str::to_owned),
            ..Arguments::default()
        };
        resolve(&arguments, &surroundings).expect("valid").model.key
    };
    assert!(matches!(resolved(None, None, None), KeySource::Missing));
    assert!(matches!(resolved(Some("https://models.example.com/v1"), None, None), KeySource::Missing));
    assert!(matches!(resolved(Some("http://127.0.0.1:11434/v1"), None, None), KeySource::NotNeeded));
    assert!(matches!(resolved(Some("http://127.0.0.1:11434/v1"), Some("not-there"), None), KeySource::File(_)));
    assert!(matches!(resolved(None, None, Some("k")), KeySource::Value(_)));
    let arguments = Arguments { model_provider: text("openai"), ..Arguments::default() };
    assert_eq!(faults(&resolve(&arguments, &place.surroundings()).expect_err("invalid")), ["--model"]);
}

#[test]
fn prices_are_read_by_model_and_each_wrong_one_is_told() {
    let place = Place::new();
    let resolved = |prices: &str| {
        let arguments = Arguments { model_prices: text(prices), ..Arguments::default() };
        resolve(&arguments, &place.surroundings()).map(|config| config.model.prices)
    };
    let price = |input, output, cache_read, cache_write| ModelPrice { input, output, cache_read, cache_write };
    assert_eq!(
        resolved("a=1/8, org/b:free=0/0, c=1/8/0.1,d=1/8/0.1/1.25").expect("valid"),
        [
            ("a".to_owned(), price(1.0, 8.0, 1.0, 1.0)),
            ("c".to_owned(), price(1.0, 8.0, 0.1, 1.0)),
            ("d".to_owned(), price(1.0, 8.0, 0.1, 1.25)),
            ("org/b:free".to_owned(), price(0.0, 0.0, 0.0, 0.0)),
        ]
        .into()
    );
    let error = resolved("a=1,=1/2,b=x/2,c=1/-2,d=1/2/3/4/5,e=1/inf,f,g=1/2,g=1/2").expect_err("invalid");
    assert_eq!(faults(&error), ["--model-prices"; 8]);
}

#[test]
fn a_template_lies_outside_of_the_workspace_and_libraries_are_names() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("template")).expect("folder");
    std::os::unix::fs::symlink(place.path().join("work"), place.path().join("link")).expect("link");
    let resolved = |template: &str, python: &str| {
        let arguments =
            Arguments { template_path: text(template), python_packages: text(python), ..Arguments::default() };
        resolve(&arguments, &place.surroundings()).map(|config| config.provisioning)
    };
    let provisioning = resolved("../template", "b a>=1,<2").expect("valid");
    assert_eq!(provisioning.template_path, Some(place.path().join("template").canonicalize().expect("real")));
    assert_eq!(provisioning.python_packages, parse_requirements("a>=1,<2 b").expect("valid"));
    for template in [".", "..", "../link", "../missing"] {
        assert_eq!(faults(&resolved(template, "").expect_err("refused")), ["--template-path"], "{template}");
    }
    assert_eq!(faults(&resolved("../template", "ok -r ./x.txt").expect_err("refused")), ["--python-packages"; 2]);
    let many = (0..65).map(|number| format!("a{number}")).collect::<Vec<_>>().join(" ");
    assert_eq!(faults(&resolved("../template", &many).expect_err("refused")), ["--python-packages"]);
}

#[test]
fn lists_of_the_file_are_those_of_the_variables() {
    let place = Place::new();
    let file = place.path().join("config.toml");
    let content = "python_packages = [\"numpy>=2,<3\", \"pandas\"]\nmodel_prices = [\"a=1/2\", \"b=3/4\"]\n";
    std::fs::write(&file, content).expect("written");
    let config = load(Arguments { config: Some(file), ..Arguments::default() }, &place.surroundings()).expect("valid");
    assert_eq!(config.provisioning.python_packages, parse_requirements("numpy>=2,<3 pandas").expect("valid"));
    assert_eq!(config.model.prices.keys().collect::<Vec<_>>(), ["a", "b"]);
}
