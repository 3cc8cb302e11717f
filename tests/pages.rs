//! The two pages in headless Chromium, against the demo pair: what they show is what the server counts.
//!
//! With `TOKENROUTER_PICTURES` set to a folder, pictures of both pages in both colour schemes and at the width of a phone
//! are written there.

mod support;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use support::browser::{Browser, has_browser};
use support::http::{get, post};
use support::metrics::Scrape;
use support::process::{ServerProcess, demo_config};
use support::{problems, rendered, skip};

const KEY: &str = "sk-pages";

fn server(lines: &str) -> ServerProcess {
    ServerProcess::start(&demo_config("name = \"r-stitch\"\nthreshold = 0.03", lines))
}

/// The page has had no complaint, and has talked to nobody but the server.
fn assert_clean(browser: &Browser, server: &ServerProcess) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
    let own = format!("http://{}/", server.http);
    let strangers: BTreeSet<String> = browser
        .requests()
        .into_iter()
        .filter(|url| !url.starts_with(&own) && !url.starts_with("data:") && !url.starts_with("chrome"))
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

fn picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("TOKENROUTER_PICTURES") {
        browser.picture(&std::path::Path::new(&folder).join(format!("{name}.png")));
    }
}

fn send(browser: &Browser, prompt: &str) {
    browser.run(&format!("document.getElementById('prompt').value = {}", json!(prompt)));
    browser.run("document.getElementById('send').click()");
}

fn is_over(browser: &Browser) -> Value {
    browser.wait("return document.getElementById('ending').innerText")
}

/// What the metrics say a model has committed.
fn committed(server: &ServerProcess, model: &str) -> f64 {
    Scrape::new(server.http).get(&format!("tokenrouter:committed_tokens_total{{model=\"{model}\"}}"))
}

#[test]
fn the_page_to_try_colours_every_token_by_its_writer() {
    if !has_browser() {
        return skip("chromium and chromedriver are not installed");
    }
    let server = server("");
    let browser = Browser::open(1180, 900, false);
    browser.go(&format!("http://{}/", server.http));
    browser.wait("return document.querySelectorAll('#route option').length === 3");
    assert_eq!(browser.text("threshold-value"), "0.03");
    let prompt = &problems(1)[0].prompt;
    send(&browser, prompt);
    assert_eq!(is_over(&browser), "finished");
    let by_model = |model: usize| {
        let script =
            format!("return document.querySelectorAll('#answer .tok[data-model=\"{model}\"]').length");
        browser.run(&script).as_f64().expect("a number")
    };
    assert!(by_model(0) > 0.0 && by_model(1) > 0.0, "{}", browser.text("answer"));
    let (small, large) = (committed(&server, "small"), committed(&server, "large"));
    assert_eq!(browser.text("tokens-total"), format!("{}", small + large));
    let share = browser.text("share");
    let exact = large / (small + large) * 100.0;
    assert!(
        (share.trim_end_matches('%').parse::<f64>().expect("a share") - exact).abs() <= 0.5,
        "{share} {exact}"
    );
    assert_eq!(
        browser.text("legend").matches(&format!("{large} ·")).count(),
        1,
        "{}",
        browser.text("legend")
    );
    // The server's own summary is in the table.
    let rows = browser
        .run("return [...document.querySelectorAll('#by-model tr')].map((row) => row.cells[1].innerText)");
    assert_eq!(rows, json!([small.to_string(), large.to_string()]));
    // The same answer as without a browser.
    let asked = post(
        server.http,
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 256}),
    );
    let message = &asked.json()["choices"][0]["message"];
    let whole = [&message["reasoning_content"], &message["content"]].map(|part| part.as_str().unwrap_or(""));
    assert_eq!(browser.run("return document.getElementById('answer').textContent"), whole.concat());
    picture(&browser, "try");

    // Another route, and text as it is.
    browser.run("const route = document.getElementById('route'); route.value = 'small'; route.onchange()");
    browser.run("document.querySelector('[name=kind][value=raw]').click()");
    send(&browser, &rendered(prompt));
    assert_eq!(is_over(&browser), "finished");
    assert_eq!((browser.text("share").as_str(), by_model(1)), ("0%", 0.0));
    // A refusal is shown in the server's words.
    browser.run("document.getElementById('max-tokens').value = '-1'");
    send(&browser, "x");
    let message = browser.wait("return document.getElementById('error-text').innerText");
    assert!(message.as_str().is_some_and(|text| text.contains("max_tokens")), "{message}");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("400")), "only the refusal itself: {complaints:?}");
    assert_clean(&browser, &server);
    server.stop();
}

#[test]
fn an_answer_can_be_stopped() {
    if !has_browser() {
        return skip("chromium and chromedriver are not installed");
    }
    let server = server("");
    let browser = Browser::open(390, 844, true);
    browser.go(&format!("http://{}/", server.http));
    browser.wait("return document.querySelectorAll('#route option').length === 3");
    picture(&browser, "try-phone-empty");
    // Stopped at its first token: hot enough that it does not end by itself before.
    browser.run(
        "document.getElementById('temperature').value = '2';
         new MutationObserver(() => document.getElementById('stop').click())
             .observe(document.getElementById('answer'), { childList: true });",
    );
    send(&browser, &problems(2)[1].prompt);
    let ending = is_over(&browser);
    assert!(ending == "stopped" || ending == "finished", "{ending}");
    picture(&browser, "try-phone");
    let wide = browser.run("return document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(wide, true, "nothing reaches over the edge of a phone");
    browser.wait("return document.getElementById('send').disabled === false");
    assert_clean(&browser, &server);
    server.stop();
}

#[test]
fn the_status_page_shows_what_the_server_counts() {
    if !has_browser() {
        return skip("chromium and chromedriver are not installed");
    }
    let server = server("max_running = 8");
    let browser = Browser::open(1180, 1400, false);
    browser.go(&format!("http://{}/status", server.http));
    browser.wait("return document.querySelectorAll('#models .model').length === 2");
    picture(&browser, "status-idle");
    let rounds = if std::env::var_os("TOKENROUTER_PICTURES").is_some() { 12 } else { 1 };
    for _ in 0..rounds {
        std::thread::scope(|scope| {
            for problem in problems(8) {
                let body = json!({"prompt": rendered(&problem.prompt), "max_tokens": 80, "temperature": 0});
                let http = server.http;
                scope.spawn(move || assert_eq!(post(http, "/v1/completions", &body).status, 200));
            }
        });
    }
    let (small, large) = (committed(&server, "small"), committed(&server, "large"));
    let shown = format!("{} tokens in all", with_commas(small));
    browser.wait(&format!("return document.getElementById('legend').innerText.includes({shown:?})"));
    assert!(browser.text("legend").contains(&format!("{} tokens in all", with_commas(large))));
    assert!(
        browser.text("ended").starts_with(&with_commas(f64::from(8 * rounds))),
        "{}",
        browser.text("ended")
    );
    assert_eq!((browser.text("running").as_str(), browser.text("waiting").as_str()), ("0", "0"));
    let handoffs = Scrape::new(server.http)
        .get("tokenrouter:handoffs_total{from=\"small\",to=\"large\",reason=\"drop\"}");
    let row =
        browser.run("return [...document.querySelector('#edges tr').cells].map((cell) => cell.innerText)");
    assert_eq!((&row[0], &row[3]), (&json!("small → large"), &json!(with_commas(handoffs))), "{row}");
    let data = get(server.http, "/v1/status").json();
    assert_eq!(data["models"][1]["committed"].as_f64(), Some(large));
    picture(&browser, "status");
    assert_clean(&browser, &server);
    drop(browser);

    let phone = Browser::open(390, 1600, true);
    phone.go(&format!("http://{}/status", server.http));
    phone.wait("return document.querySelectorAll('#models .model').length === 2");
    assert_eq!(phone.run("return document.documentElement.scrollWidth <= innerWidth"), true);
    picture(&phone, "status-phone");
    assert_clean(&phone, &server);
    server.stop();
}

fn with_commas(number: f64) -> String {
    let digits = format!("{number}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn both_pages_ask_for_a_key_where_one_is_needed() {
    if !has_browser() {
        return skip("chromium and chromedriver are not installed");
    }
    let server = server(&format!("api_keys = [{KEY:?}]"));
    let browser = Browser::open(1180, 900, true);
    for page in ["/", "/status"] {
        browser.go(&format!("http://{}{page}", server.http));
        if page == "/" {
            browser.wait("return document.getElementById('key-form').hidden === false");
            browser.run(&format!(
                "document.getElementById('key').value = {KEY:?}; document.getElementById('key-form').requestSubmit()"
            ));
            browser.wait("return document.querySelectorAll('#route option').length === 3");
            send(&browser, &problems(1)[0].prompt);
            assert_eq!(is_over(&browser), "finished");
            picture(&browser, "try-dark");
        } else {
            // The key is kept while the tab is open.
            browser.wait("return document.querySelectorAll('#models .model').length === 2");
            picture(&browser, "status-dark");
        }
    }
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("401")), "only the refusal itself: {complaints:?}");
    assert_clean(&browser, &server);
    server.stop();
}
