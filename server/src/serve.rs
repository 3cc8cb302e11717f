//! `tokenrouter serve`: a deployment with sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokenrouter_scheduler::router::Registry;

use crate::cli::tell;
use crate::config::{Config, ServerSection};
use crate::deploy::{self, Deployment};
use crate::frontend::ApiFrontend;
use crate::net::{Access, App, Loading, NetConfig, Secret, Server, ServerControl, TlsFiles};

/// Bound sockets and a running engine.
pub struct Started {
    server: Loading,
    app: App,
    plan: String,
    thresholds: Vec<String>,
    name: String,
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
        let plan = deployment.engine.info.plan_table.clone();
        let thresholds = deploy::threshold_lines(&deployment.engine.info.routes).collect();
        let name = config.server.served_model_name.clone();
        let props = props(config, &deployment);
        let frontend = ApiFrontend::new(deployment.limits, deployment.context.clone());
        let app = App {
            engine: deployment.engine,
            frontend: Arc::new(frontend),
            routes: deployment.context.routes.clone(),
            props,
        };
        Ok(Started { server, app, plan, thresholds, name })
    }

    /// Prints the memory plan, which thresholds are in force, and the addresses to stderr.
    pub fn announce(self) -> Self {
        tell(self.plan.trim_end());
        for line in &self.thresholds {
            tell(line);
        }
        if let Some(at) = self.http_addr() {
            tell(&format!("serving \"{}\" on http://{at}", self.name));
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
        self.server.run(self.app).map_err(|e| e.to_string())?;
        Ok(())
    }
}

/// What clients that set themselves up by it want to know: what runs, how much fits, and the configuration without
/// secrets and paths.
fn props(config: &Config, deployment: &Deployment) -> Vec<u8> {
    let info = &deployment.engine.info;
    let models: Vec<_> = info
        .models
        .iter()
        .map(|model| json!({"name": model.name, "max_model_len": model.context_len}))
        .collect();
    let routes: Vec<_> =
        info.routes.iter().map(|route| json!({"name": route.name, "algorithm": route.router})).collect();
    let props = json!({
        "version": env!("CARGO_PKG_VERSION"), "max_model_len": info.context_len,
        "capacity_tokens": info.capacity_tokens, "models": models, "routes": routes,
        // The names that clients of llama.cpp read.
        "default_generation_settings": {"n_ctx": info.context_len}, "total_slots": config.server.max_running,
        "config": config.to_json(),
    });
    props.to_string().into_bytes()
}

/// What the network thread is told.
///
/// # Errors
/// A file of keys that cannot be read, or that holds none.
fn net_config(all: &Config) -> Result<NetConfig, String> {
    let section = &all.server;
    let seconds = Duration::from_secs_f64;
    let tls = section.tls_cert.clone().zip(section.tls_key.clone());
    let mut config = NetConfig {
        http: Some(section.http),
        tcp: section.tcp,
        max_connections: section.max_connections,
        max_line_requests: section.max_line_requests,
        tokenizer_threads: section.tokenizer_threads,
        max_waiting: section.max_waiting,
        access: Arc::new(Access::new(api_keys(section)?, section.cors_origins.clone())),
        metrics_need_key: section.metrics_need_key,
        tls: tls.map(|(cert, key)| TlsFiles { cert, key }),
        log_prompts: all.log.prompts,
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

/// The keys of the configuration and of its file. A file that was meant to close the server must not leave it open.
fn api_keys(section: &ServerSection) -> Result<Vec<Secret>, String> {
    let mut keys: Vec<Secret> = section.api_keys.iter().map(Secret::new).collect();
    if let Some(path) = &section.api_key_file {
        let fail = |why: &dyn std::fmt::Display| format!("server.api_key_file: {}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(lines.map(Secret::new));
        if keys.len() == before {
            return Err(fail(&"it holds no key"));
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::text::fixtures::TempDir;

    fn config(server: &str, base: &Path) -> Config {
        let text = format!("[[model]]\nname = \"one\"\npath = \"x\"\n[server]\n{server}");
        Config::parse(&text, base).expect("good")
    }

    #[test]
    fn keys_come_from_the_list_and_from_the_file() {
        let dir = TempDir::new();
        dir.write("keys", "# clients\n\n  sk-two  \nsk-three\n").write("none", "# nobody\n\n");
        let net = net_config(&config("api_keys = [\"sk-one\"]\napi_key_file = \"keys\"", dir.path()))
            .expect("good");
        for key in ["sk-one", "sk-two", "sk-three"] {
            assert!(net.access.accepts(&Secret::new(key)), "{key}");
        }
        assert!(!net.access.accepts(&Secret::new("# clients")));
        assert!(!net_config(&config("", dir.path())).expect("good").access.needs_key());
        for (file, part) in [("none", "holds no key"), ("nowhere", "nowhere")] {
            let error =
                net_config(&config(&format!("api_key_file = \"{file}\""), dir.path())).expect_err(part);
            assert!(error.contains("server.api_key_file") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn times_and_limits_reach_the_network_thread() {
        let text = "queue_timeout_s = 1.5\nwrite_timeout_s = 2\nkeep_alive_s = 3\ndrain_delay_s = 4\n\
                    shutdown_timeout_s = 5\nstall_timeout_s = 6\nmax_line_requests = 7\ncors_origins = [\"*\"]";
        let net = net_config(&config(text, Path::new(""))).expect("good");
        let times = &net.timeouts;
        assert_eq!(times.queue, Some(Duration::from_millis(1500)));
        assert_eq!(times.request, None);
        let found = [times.write, times.keep_alive, times.drain_delay, times.shutdown, times.stall];
        assert_eq!(found.map(|t| t.as_secs()), [2, 3, 4, 5, 6]);
        assert_eq!(net.max_line_requests, 7);
    }
}
