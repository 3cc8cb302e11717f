//! `tokenrouter plan` through the binary.

mod support;

use serde_json::Value;
use support::process::{run, scratch_dir};

const R2R: [&str; 9] = [
    "plan",
    "--routing",
    "[[0.65,0.35],[1,0]]",
    "--commit",
    "[[1,0],[1,0]]",
    "--latency-ms",
    "6.0,27.9",
    "--requests",
    "8",
];

fn plan(extra: &[&str]) -> (bool, String, String) {
    run(&[&R2R, extra].concat())
}

/// The flags of the example with one value changed.
fn plan_with(flag: &str, value: &str) -> (bool, String, String) {
    let at = R2R.iter().position(|f| *f == flag).expect("a flag of the example");
    let mut args = R2R;
    args[at + 1] = value;
    run(&args)
}

#[test]
fn the_papers_example_prints_the_table_and_the_best_thresholds() {
    let (ok, out, err) = plan(&[]);
    assert!(ok, "{err}");
    let marked: Vec<&str> = out.lines().filter(|l| l.starts_with('*')).collect();
    assert_eq!(marked.len(), 1, "{out}");
    assert!(marked[0].starts_with("* 1,5") && marked[0].contains("399.05"), "{out}");
    assert!(out.contains("best B = 1,5: 399.05 tokens/s, +8.08 % over eager batching"), "{out}");
    assert!(out.contains("grid of 0.3 ms") && !out.contains("rounded"), "{out}");
    // 36 feasible vectors, the columns, the grid and the best.
    assert_eq!(out.lines().count(), 39, "{out}");
}

#[test]
fn json_lists_the_best_and_every_row() {
    let (ok, out, err) = plan(&["--json"]);
    assert!(ok, "{err}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["best"], serde_json::json!([1, 5]));
    assert_eq!(value["complete"], true);
    let rows = value["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 36);
    assert_eq!(rows[0]["B"], serde_json::json!([1, 1]));
    let rate = |row: &Value| row["tokens_per_s"].as_f64().expect("a rate");
    assert!((rate(&rows[0]) - 369.2065628568).abs() < 1e-6, "{}", rows[0]);
    assert!((rate(&rows[4]) - 399.05).abs() < 0.01, "{}", rows[4]);
    let (ok, shared, _) = plan(&["--json", "--slowdown", "1.5"]);
    assert!(ok && serde_json::from_str::<Value>(&shared).expect("JSON")["best"] != value["best"], "{shared}");
}

#[test]
fn many_vectors_are_climbed_and_the_answer_says_so() {
    let (ok, out, err) = plan_with("--requests", "64");
    assert!(ok, "{err}");
    // Here the small model waits too: B = 1,40, the best with B0 = 1, gives 3022.85.
    assert!(
        out.contains("best B = 6,40: 3114.68") && out.contains("of 2080 feasible vectors evaluated"),
        "{out}"
    );
}

#[test]
fn times_without_a_common_quantum_are_rounded_and_said_to_be() {
    let (ok, out, err) = plan_with("--latency-ms", "6.0131,27.9177");
    assert!(ok && out.contains("rounded by at most"), "{out}{err}");
    assert!(out.contains("best B = 1,5"), "{out}");
    let (ok, out, err) = plan(&["--quantum-ms", "1"]);
    assert!(
        ok && out.contains("step times 6, 28 ms on a grid of 1 ms (rounded by at most 0.36 %)"),
        "{out}{err}"
    );
}

#[test]
fn the_plot_has_axes_labels_and_the_best_point() {
    let dir = scratch_dir("plan");
    let three = ["--latency-ms", "6,12,27.9", "--requests", "3", "--commit", "[[1,1,1],[1,1,1],[1,1,1]]"];
    let ensemble =
        [&["plan", "--routing", "[[0.5,0.3,0.2],[0.5,0.3,0.2],[0.5,0.3,0.2]]"], &three[..]].concat();
    for (args, best, axis) in
        [(&R2R[..], "1,5", "threshold of model 1"), (&ensemble, "1,1,1", "thresholds B")]
    {
        let file = dir.join("plan.svg").display().to_string();
        let (ok, _, err) = run(&[args, &["--svg", &file]].concat());
        assert!(ok, "{err}");
        let svg = std::fs::read_to_string(&file).expect("the plot");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in [best, axis, "tokens/s", "Delayed batching, N = "] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    let nowhere = dir.join("no/such/folder/plan.svg").display().to_string();
    let (ok, _, err) = plan(&["--svg", &nowhere]);
    assert!(!ok && err.contains(&nowhere) && err.lines().count() == 1, "{err}");
}

#[test]
fn bad_flags_are_one_clear_line() {
    let cases = [
        ("--routing", "[[0.65,0.30],[1,0]]", "row 0 of the routing matrix sums to 0.95"),
        ("--routing", "[[1.2,-0.2],[1,0]]", "P[0][0] is 1.2"),
        ("--routing", "0.35", "--routing is \"0.35\""),
        ("--routing", "[[0,0.5,0.5],[0,1,0],[0,0,1]]", "commit matrix has 2 entries; 3"),
        ("--commit", "[[1,0],[1,-1]]", "C[1][1] is -1"),
        ("--commit", "[[0,0],[0,0]]", "commits a token"),
        ("--latency-ms", "6.0,fast", "--latency-ms has \"fast\""),
        ("--latency-ms", "6.0,0", "step time is 0 ms"),
        ("--latency-ms", "-6,27.9", "step time is -6 ms"),
        ("--latency-ms", "6.0", "step times has 1 entries; 2"),
        ("--requests", "0", "one request"),
        ("--requests", "70000", "at most 65536"),
    ];
    for (flag, value, expected) in cases {
        let (ok, out, err) = plan_with(flag, value);
        assert!(!ok && err.contains(expected) && err.lines().count() == 1, "{flag} {value}: {out}{err}");
    }
    for (flags, expected) in [
        (["--quantum-ms", "-1"], "quantum is -1 ms"),
        (["--quantum-ms", "100"], "quantum (ms) is 100"),
        (["--slowdown", "0"], "slowdown is 0"),
        (["--entry", "2"], "entry model 2 of 2"),
        (["--max-states", "50"], "more than 50 states; a coarser --quantum-ms"),
    ] {
        let (ok, _, err) = plan(&flags);
        assert!(!ok && err.contains(expected) && err.lines().count() == 1, "{flags:?}: {err}");
    }
}
