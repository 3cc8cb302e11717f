//! Lost and stalled models: answers, `/health` and `/ready`.

use tokenrouter_engine::ModelState;
use tokenrouter_scheduler::PeerLoss;

use super::{Harness, get, post};

fn status_of(server: &Harness, path: &str) -> (u16, serde_json::Value) {
    let mut client = server.client();
    client.send(get(path));
    let answer = client.answer();
    (answer.status, answer.json())
}

/// By its name, with a status that says: try elsewhere.
#[test]
fn a_request_that_needs_a_lost_model_is_told_so() {
    let server = Harness::new();
    for prompt in ["lose", "lose-late", "refuse-lost"] {
        let answer = server.complete(&format!("{{\"prompt\":\"{prompt}\"}}"));
        assert_eq!((answer.status, answer.code().as_str()), (503, "model_lost"), "{prompt}");
        let error = &answer.json()["error"];
        assert!(error["message"].as_str().unwrap().contains("\"small\""), "{error}");
        assert_eq!(error["type"], "server_error");
        assert!(answer.headers.contains_key("retry-after"));
        assert_ne!(answer.headers.get("x-should-retry").map(String::as_str), Some("false"));
    }
    let mut client = server.client();
    client.send(post("{\"prompt\":\"lose-late\",\"stream\":true}"));
    assert_eq!(client.head().status, 200);
    let mut chunk = String::new();
    while !chunk.contains("model_lost") {
        chunk = client.chunk();
        assert!(!chunk.is_empty(), "the stream ends without a word");
    }
    assert!(chunk.contains("data: {\"error\":"), "{chunk}");
    assert_eq!(client.chunk(), "data: [DONE]\n\n");
}

/// Not ready while any model is lost or late, and alive as long as the operator sees it so.
#[test]
fn health_and_readiness_name_the_lost_model() {
    for continues in [false, true] {
        let server = Harness::with_engine(
            |_| {},
            |handle| {
                if continues {
                    handle.info.faults.on_peer_loss = PeerLoss::Continue;
                }
                let second = handle.info.models[0].clone();
                handle.info.models.push(tokenrouter_engine::ModelInfo { name: "large".into(), ..second });
            },
        );
        let models = &server.engine.status.models;
        let (status, body) = status_of(&server, "/ready");
        assert_eq!((status, body["models"]["large"]["state"].as_str()), (200, Some("ready")), "{body}");
        models[1].set_trouble(ModelState::Stalled, "a step is late");
        let (status, body) = status_of(&server, "/ready");
        assert_eq!((status, body["status"].as_str()), (503, Some("stalled")), "{body}");
        assert_eq!(status_of(&server, "/health").0, 200, "it may still end");
        models[1].set_trouble(ModelState::Lost, "rank 1: its thread has died");
        // A step that never ends is no stall of the others.
        models[1].in_flight_since.store(7, std::sync::atomic::Ordering::Relaxed);
        let (status, body) = status_of(&server, "/ready");
        assert_eq!((status, body["status"].as_str()), (503, Some("lost")), "{body}");
        let large = &body["models"]["large"];
        assert_eq!(
            (large["state"].as_str(), large["trouble"].as_str()),
            (Some("lost"), Some("rank 1: its thread has died"))
        );
        assert_eq!(body["models"]["small"]["state"], "ready");
        let (status, body) = status_of(&server, "/health");
        if continues {
            assert_eq!((status, body["status"].as_str()), (200, Some("degraded")));
            models[0].set_trouble(ModelState::Lost, "too");
            assert_eq!(status_of(&server, "/health").0, 503, "nobody is left");
            models[0].set_ready();
        } else {
            assert_eq!((status, body["error"]["code"].as_str()), (503, Some("model_lost")));
            assert!(body["error"]["message"].as_str().unwrap().contains("model \"large\" (rank 1"), "{body}");
        }
        models[1].set_ready();
        models[1].in_flight_since.store(0, std::sync::atomic::Ordering::Relaxed);
        assert_eq!((status_of(&server, "/ready").0, status_of(&server, "/health").0), (200, 200));
    }
}
