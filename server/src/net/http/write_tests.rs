use super::write::{self, AnswerShape, Response};

fn shape() -> AnswerShape {
    AnswerShape {
        http11: true,
        keep_alive: true,
        head_only: false,
        request_id: "r-1".into(),
        cors: Vec::new(),
    }
}

fn text(response: &Response, shape: &AnswerShape) -> String {
    let mut out = Vec::new();
    write::response(&mut out, response, shape);
    String::from_utf8(out).unwrap()
}

#[test]
fn whole_answers() {
    let answer = text(&Response::json(200, b"{}".to_vec()).with("Retry-After", "1"), &shape());
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nDate: "), "{answer}");
    assert!(
        answer.contains("\r\nConnection: keep-alive\r\n") && answer.contains("\r\nx-request-id: r-1\r\n")
    );
    assert!(answer.contains("\r\nRetry-After: 1\r\n"));
    assert!(answer.ends_with("\r\nContent-Length: 2\r\n\r\n{}"));
    let head = text(&Response::json(200, b"{}".to_vec()), &AnswerShape { head_only: true, ..shape() });
    assert!(head.ends_with("\r\nContent-Length: 2\r\n\r\n"));
    assert!(!text(&Response::empty(204), &shape()).contains("Content-"));
    let old = AnswerShape { http11: false, keep_alive: false, ..shape() };
    assert!(text(&Response::empty(200), &old).starts_with("HTTP/1.0 200 OK\r\n"));
}

#[test]
fn error_objects() {
    let error = Response::error(429, Some("queue_full"), "busy");
    let json: serde_json::Value = serde_json::from_slice(&error.body).unwrap();
    assert_eq!(json["error"]["type"], "rate_limit_error");
    assert_eq!(json["error"]["code"], "queue_full");
    assert!(json["error"]["param"].is_null());
}

#[test]
fn each_event_is_one_chunk() {
    let mut out = Vec::new();
    write::stream_events(&mut out, b"data: {\"a\":1}\n\ndata: [DONE]\n\n", true);
    write::stream_end(&mut out, true);
    assert_eq!(out, b"f\r\ndata: {\"a\":1}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    out.clear();
    write::stream_events(&mut out, b"data: 1\n\n", false);
    write::stream_end(&mut out, false);
    assert_eq!(out, b"data: 1\n\n");
}
