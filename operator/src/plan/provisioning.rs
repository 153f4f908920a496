//! What a fresh workspace gets: from the raw spec to a template and a list that can be carried out.

use crate::crd::{self, Reason};

use super::{Config, valid::Invalid};

/// Where the files of a fresh workspace come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// The keys of a ConfigMap.
    ConfigMap {
        /// Its name.
        name: String,
    },
    /// A folder of an image.
    Image {
        /// Image.
        image: String,
        /// Folder.
        path: String,
    },
}

impl TemplateSource {
    /// The schema demands one of both; objects from before a rule, or past it, are refused here.
    pub(super) fn parse(config: &Config, raw: crd::Template) -> Result<Self, Invalid> {
        match (raw.config_map_name, raw.image, raw.path) {
            (Some(name), None, None) => {
                config_map_allowed(config, "spec.template", &name)?;
                Ok(Self::ConfigMap { name })
            }
            (None, Some(image), Some(path)) if path.starts_with('/') => Ok(Self::Image { image, path }),
            _ => Err(Invalid::spec("spec.template needs either configMapName, or image and an absolute path")),
        }
    }
}

/// Whether users may have us mount this ConfigMap.
fn config_map_allowed(config: &Config, field: &str, name: &str) -> Result<(), Invalid> {
    let prefix = &config.allowed_secret_prefix;
    if name.starts_with(prefix.as_str()) {
        return Ok(());
    }
    Err(Invalid {
        reason: Reason::SecretNotAllowed,
        message: format!(
            "{field}: config map {name} may not be used, its name must begin with {prefix:?}; rename it or ask for another --allowed-secret-prefix"
        ),
    })
}

/// The ConfigMap with the defaults of settings.
pub(super) fn settings(config: &Config, raw: crd::ConfigMapReference) -> Result<String, Invalid> {
    config_map_allowed(config, "spec.agent.settingsRef", &raw.name)?;
    Ok(raw.name)
}

/// The list as the agent server takes it: separated by blanks, in an order that does not depend on the spec's.
pub(super) fn python_libraries(raw: crd::Libraries) -> Result<Vec<String>, Invalid> {
    let mut libraries = raw.python;
    if let Some(wrong) = libraries.iter().find(|library| library.is_empty() || library.contains(char::is_whitespace)) {
        return Err(Invalid::spec(format!("spec.libraries.python: {wrong:?} is no library")));
    }
    libraries.sort();
    libraries.dedup();
    Ok(libraries)
}
