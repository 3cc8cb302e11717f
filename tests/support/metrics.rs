//! Reading `/metrics`.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::http;

/// One scrape: values by name and labels without the label `model_name`, as in `a_total{model="small"}`.
pub struct Scrape(HashMap<String, f64>);

impl Scrape {
    /// Asks for the page.
    pub fn new(address: SocketAddr) -> Self {
        let page = http::get(address, "/metrics");
        assert_eq!(page.status, 200, "{}", page.body);
        assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let common = "model_name=\"demo\"";
            assert!(name.contains(common), "{line}");
            let name = name.replace(&format!("{common},"), "").replace(&format!("{{{common}}}"), "");
            (name, value.parse().unwrap_or_else(|_| panic!("{line}")))
        };
        Scrape(page.body.lines().filter(|line| !line.starts_with('#')).map(sample).collect())
    }

    /// One value.
    pub fn get(&self, name: &str) -> f64 {
        *self.0.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.0.keys()))
    }

    /// The values of a family by labels.
    pub fn family(&self, name: &str) -> Vec<(&str, f64)> {
        let start = format!("{name}{{");
        self.0.iter().filter_map(|(key, value)| Some((key.strip_prefix(&start)?, *value))).collect()
    }
}
