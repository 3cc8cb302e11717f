//! `tokenrouter serve`: a deployment with sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokenrouter_scheduler::router::Registry;

use crate::cli::tell;
use crate::config::{Config, ServerSection};
use crate::deploy::{self, Deployment};
use crate::frontend::ApiFrontend;
use crate::metrics::Throughput;
use crate::net::{Access, App, Loaded, NetConfig, Secret, Server, ServerControl, TlsFiles};

/// Bound sockets and a running engine.
pub struct Started {
    server: Loaded,
    models: Vec<String>,
    plan: String,
    thresholds: Vec<String>,
    name: String,
    /// `http` or `https`.
    scheme: &'static str,
}

impl Started {
    /// Binds the sockets, then loads the models: a port in use is found before the weights are, and clients that
    /// come early are told that the server is loading.
    ///
    /// # Errors
    /// One line that names what is wrong.
    pub fn new(config: &Config, registry: &Registry) -> Result<Self, String> {
        let server = Server::bind(net_config(config)?).map_err(|e| e.to_string())?;
        let waker = server.waker();
        let server = server.answer_loading().map_err(|e| e.to_string())?;
        let deployment = deploy::start(config, registry, Box::new(waker))?;
        watch(config, &deployment)?;
        let plan = deployment.engine.info.plan_table.clone();
        let models = deploy::model_lines(config, &deployment.engine.info).collect();
        let thresholds = deploy::threshold_lines(&deployment.engine.info.routes).collect();
        let name = config.server.served_model_name.clone();
        let props = props(config, &deployment);
        let frontend =
            ApiFrontend::new(deployment.limits, deployment.context.clone()).logging_texts(config.log.prompts);
        let app = App {
            engine: deployment.engine,
            frontend: Arc::new(frontend),
            routes: deployment.context.routes.clone(),
            props,
        };
        let server = server.finish(app).map_err(|e| e.to_string())?;
        let scheme = if config.server.tls_cert.is_some() { "https" } else { "http" };
        Ok(Started { server, models, plan, thresholds, name, scheme })
    }

    /// Prints the memory plan, which thresholds are in force, and the addresses to stderr.
    pub fn announce(self) -> Self {
        tell(&format!("tokenrouter {}", env!("CARGO_PKG_VERSION")));
        self.models.iter().for_each(|line| tell(line));
        tell(self.plan.trim_end());
        for line in &self.thresholds {
            tell(line);
        }
        if let Some(at) = self.http_addr() {
            tell(&format!("serving \"{}\" on {}://{at}", self.name, self.scheme));
        }
        if let Some(at) = self.tcp_addr() {
            tell(&format!("raw TCP (one JSON request per line) on {at}"));
        }
        self
    }

    /// The HTTP address, with the real port.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.server.http_addr()
    }

    /// The raw TCP address, with the real port.
    pub fn tcp_addr(&self) -> Option<SocketAddr> {
        self.server.tcp_addr()
    }

    /// A handle that stops the server from another thread.
    pub fn control(&self) -> ServerControl {
        self.server.control()
    }

    /// Serves until a signal or `ServerControl` ends it.
    ///
    /// # Errors
    /// When the event loop fails.
    pub fn run(self) -> Result<(), String> {
        self.server.run().map_err(|e| e.to_string())?;
        Ok(())
    }
}

/// The throughput lines of the log.
fn watch(config: &Config, deployment: &Deployment) -> Result<(), String> {
    let Some(every) = config.log.throughput_every() else { return Ok(()) };
    let names = deployment.context.models.clone();
    Throughput::start(&deployment.engine.status, names, every)
        .map_err(|e| format!("no thread for the throughput lines: {e}"))
}

/// What clients that set themselves up by it want to know: what runs, how much fits, and the configuration without
/// secrets and paths.
fn props(config: &Config, deployment: &Deployment) -> Vec<u8> {
    let info = &deployment.engine.info;
    let models: Vec<_> = info
        .models
        .iter()
        .map(|model| serde_json::json!({"name": model.name, "max_model_len": model.context_len}))
        .collect();
    let routes: Vec<_> = info
        .routes
        .iter()
        .map(|route| serde_json::json!({"name": route.name, "algorithm": route.router}))
        .collect();
    let props = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "max_model_len": info.context_len,
        "capacity_tokens": info.capacity_tokens, "models": models, "routes": routes,
        // The names that clients of llama.cpp read.
        "default_generation_settings": {"n_ctx": info.context_len}, "total_slots": config.server.max_running,
        "config": config.to_json(),
    });
    props.to_string().into_bytes()
}

/// Keys of the configuration and of its file, and the origins of pages.
fn access(section: &ServerSection) -> Result<Access, String> {
    let mut keys: Vec<Secret> = section.api_keys.iter().map(Secret::new).collect();
    if let Some(path) = &section.api_key_file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("server.api_key_file: {}: {error}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(Secret::new));
        if keys.len() == before {
            return Err(format!("server.api_key_file: there is no key in {}", path.display()));
        }
    }
    Ok(Access::new(keys, section.cors_origins.clone()))
}

fn tls(section: &ServerSection) -> Result<Option<TlsFiles>, String> {
    match (&section.tls_cert, &section.tls_key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert: cert.clone(), key: key.clone() })),
        (Some(_), None) => Err("server.tls_cert needs server.tls_key beside it".into()),
        (None, Some(_)) => Err("server.tls_key needs server.tls_cert beside it".into()),
    }
}

/// What the network thread is told.
fn net_config(config: &Config) -> Result<NetConfig, String> {
    let section = &config.server;
    let seconds = Duration::from_secs_f64;
    let mut config = NetConfig {
        http: Some(section.http),
        tcp: section.tcp,
        max_connections: section.max_connections,
        max_line_requests: section.max_line_requests,
        tokenizer_threads: section.tokenizer_threads,
        max_waiting: section.max_waiting,
        access: Arc::new(access(section)?),
        metrics_need_key: section.metrics_need_key,
        tls: tls(section)?,
        ..NetConfig::default()
    };
    config.limits.body = section.max_body_bytes;
    config.timeouts.write = seconds(section.write_timeout_s);
    config.timeouts.keep_alive = seconds(section.keep_alive_s);
    config.timeouts.drain_delay = seconds(section.drain_delay_s);
    config.timeouts.shutdown = seconds(section.shutdown_timeout_s);
    config.timeouts.stall = seconds(section.stall_timeout_s);
    config.timeouts.queue = section.queue_timeout();
    config.timeouts.request = section.request_timeout();
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixtures::TempDir;

    #[test]
    fn keys_come_from_the_configuration_and_from_a_file() {
        let dir = TempDir::new();
        dir.write("keys", "# people\n\n  sk-a  \nsk-b\n").write("none", "# nobody\n");
        let with_file = |name: &str| {
            let section = ServerSection {
                api_keys: vec!["sk-c".into()],
                api_key_file: Some(dir.path().join(name)),
                ..ServerSection::default()
            };
            access(&section)
        };
        let keys = with_file("keys").unwrap();
        for (key, right) in [("sk-a", true), ("sk-b", true), ("sk-c", true), ("# people", false), ("", false)]
        {
            assert_eq!(keys.accepts(&Secret::new(key)), right, "{key}");
        }
        for bad in ["none", "absent"] {
            assert!(with_file(bad).unwrap_err().starts_with("server.api_key_file: "), "{bad}");
        }
        assert!(!access(&ServerSection::default()).unwrap().needs_key());
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let file = || Some(std::path::PathBuf::from("a.pem"));
        let both = ServerSection { tls_cert: file(), tls_key: file(), ..ServerSection::default() };
        assert!(tls(&both).unwrap().is_some());
        for (cert, key) in [(file(), None), (None, file())] {
            let one = ServerSection { tls_cert: cert, tls_key: key, ..ServerSection::default() };
            assert!(tls(&one).unwrap_err().starts_with("server.tls_"));
        }
    }
}
