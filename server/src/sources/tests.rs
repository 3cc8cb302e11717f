//! The cache as it is found, and as a hub on this machine fills it.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::HubSection;
use crate::text::fixtures::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn hub_at(cache: &Path, endpoint: &str, variables: &[(&str, &str)]) -> Hub {
    let section =
        HubSection { cache: Some(cache.to_owned()), endpoint: Some(endpoint.into()), download: true };
    Hub::new(&section, &|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
}

fn repo() -> Repo {
    Repo::new("org/name", None).expect("a name")
}

/// A cache as `huggingface_hub` leaves it.
fn write_cache(root: &Path, files: &[(&str, &str)]) -> PathBuf {
    let place = root.join("models--org--name");
    let folder = place.join("snapshots").join(COMMIT);
    for dir in [place.join("refs"), place.join("blobs"), folder.clone()] {
        fs::create_dir_all(dir).expect("a folder");
    }
    fs::write(place.join("refs/main"), COMMIT).expect("a ref");
    for (name, text) in files {
        fs::write(place.join("blobs").join(name), text).expect("a blob");
        std::os::unix::fs::symlink(format!("../../blobs/{name}"), folder.join(name)).expect("a link");
    }
    folder
}

const SMALL: [(&str, &str); 3] =
    [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "w")];

#[test]
fn a_snapshot_of_the_cache_is_found_by_branch_and_by_commit() {
    let dir = TempDir::new();
    let folder = write_cache(dir.path(), &SMALL);
    let hub = hub_at(dir.path(), "http://127.0.0.1:1", &[]);
    assert_eq!(hub.folder(&repo()), Ok(folder.clone()));
    let by_commit = Repo::new("org/name", Some(COMMIT)).expect("a commit");
    assert_eq!(hub.folder(&by_commit), Ok(folder));
}

#[test]
fn offline_says_what_is_missing_and_why_nothing_is_fetched() {
    let dir = TempDir::new();
    let hub = hub_at(dir.path(), "http://127.0.0.1:1", &[("HF_HUB_OFFLINE", "1")]);
    let error = hub.folder(&repo()).expect_err("an empty cache");
    assert!(error.contains("not in the cache") && error.contains("HF_HUB_OFFLINE"), "{error}");

    write_cache(dir.path(), &SMALL[..2]);
    let error = hub.folder(&repo()).expect_err("no weights");
    assert!(error.contains("lacks model.safetensors"), "{error}");
    let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    let dir = TempDir::new();
    write_cache(
        dir.path(),
        &[SMALL[0], SMALL[1], ("model.safetensors.index.json", index), ("m-1.safetensors", "w")],
    );
    let section = HubSection { cache: Some(dir.path().to_owned()), endpoint: None, download: false };
    let error = Hub::new(&section, &|_| None).folder(&repo()).expect_err("a shard is missing");
    assert!(error.contains("lacks m-2.safetensors") && error.contains("hub.download is false"), "{error}");
}

#[cfg(feature = "hub")]
#[test]
fn the_cache_is_where_huggingface_hub_has_it() {
    let section = HubSection { cache: None, endpoint: None, download: true };
    let place = |variables: &[(&str, &str)]| {
        let hub = Hub::new(&section, &|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        });
        (hub.cache.repo(&repo()), hub.endpoint, hub.token)
    };
    let all = [
        ("HF_HUB_CACHE", "/hub"),
        ("HF_HOME", "/home"),
        ("XDG_CACHE_HOME", "/xdg"),
        ("HOME", "/me"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_TOKEN", " hf_x\n"),
    ];
    let repo = "models--org--name";
    let (cache, endpoint, token) = place(&all);
    assert_eq!((endpoint.as_str(), token.as_deref()), ("http://mirror", Some("hf_x")));
    assert_eq!(cache, Path::new("/hub").join(repo));
    assert_eq!(place(&all[1..]).0, Path::new("/home/hub").join(repo));
    assert_eq!(place(&all[2..]).0, Path::new("/xdg/huggingface/hub").join(repo));
    assert_eq!(place(&all[3..]).0, Path::new("/me/.cache/huggingface/hub").join(repo));
    assert_eq!(place(&all[3..4]).1, "https://huggingface.co");
}

/// They become parts of paths.
#[test]
fn names_and_revisions_that_lead_elsewhere_are_refused() {
    for name in ["name", "a/b/c", "../b", "a/..", "/a", "a/", "a/b c", "-a/b", ".a/b", ""] {
        assert!(Repo::new(name, None).is_err(), "{name}");
    }
    for revision in ["", "..", "a/../b", "/a", "a//b", "a b", "-a"] {
        assert!(Repo::new("a/b", Some(revision)).is_err(), "{revision}");
    }
    assert!(Repo::new("Qwen/Qwen3-0.6B", Some("refs/pr/1")).is_ok());
    for file in ["../x.safetensors", "/x.safetensors", "x.bin", "a/b.safetensors"] {
        let index = serde_json::json!({"weight_map": {"a": file}}).to_string();
        assert!(shards(index.as_bytes()).is_err(), "{file}");
    }
}

#[cfg(feature = "hub")]
mod downloads {
    use super::super::server::{COMMIT, Faults, TestHub, etag};
    use super::*;

    fn weights() -> Vec<u8> {
        (0..700_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    fn files() -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("README.md", b"text".to_vec()),
            ("config.json", b"{\"a\": 1}".to_vec()),
            ("model.safetensors", weights()),
            ("pytorch_model.bin", b"pickle".to_vec()),
            ("tokenizer.json", b"{}".to_vec()),
            ("tokenizer_config.json", b"{\"b\": 2}".to_vec()),
        ]
    }

    fn start(faults: Faults) -> (TempDir, TestHub, Hub) {
        let (dir, server) = (TempDir::new(), TestHub::start(&files(), faults));
        let hub = hub_at(dir.path(), &server.endpoint(), &[("HF_TOKEN", "hf_secret")]);
        (dir, server, hub)
    }

    fn weights_blob(dir: &TempDir) -> PathBuf {
        dir.path().join("models--org--name/blobs").join(etag("model.safetensors", &weights()))
    }

    #[test]
    fn what_serving_needs_is_fetched_once_into_the_layout_of_the_cache() {
        let (dir, server, hub) = start(Faults::default());
        let folder = hub.folder(&repo()).expect("it is fetched");
        assert_eq!(folder, dir.path().join("models--org--name/snapshots").join(COMMIT));
        assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
        assert_eq!(fs::read_to_string(folder.join("config.json")).expect("a file"), "{\"a\": 1}");
        let link = fs::read_link(folder.join("model.safetensors")).expect("a link");
        assert_eq!(link, Path::new("../../blobs").join(etag("model.safetensors", &weights())));
        assert_eq!(
            fs::read_to_string(dir.path().join("models--org--name/refs/main")).expect("a ref"),
            COMMIT
        );
        let seen = server.seen();
        let asked = |part: &str| seen.iter().any(|s| s.path.contains(part));
        assert!(!asked("README") && !asked("pytorch") && !asked("chat_template"), "{seen:?}");
        for request in &seen {
            let store = request.path.starts_with("/store/");
            assert_eq!(request.token.is_none(), store, "the token is for the hub alone: {request:?}");
        }
        // The second time nobody is asked.
        assert_eq!(hub.folder(&repo()), Ok(folder));
        assert_eq!(server.seen().len(), seen.len());
        let by_commit = Repo::new("org/name", Some(COMMIT)).expect("a commit");
        assert!(hub.folder(&by_commit).is_ok());
    }

    #[test]
    fn a_cut_file_goes_on_where_it_stopped() {
        for no_ranges in [false, true] {
            let (_dir, server, hub) = start(Faults { cut: (100_000, 3), no_ranges, ..Faults::default() });
            let folder = hub.folder(&repo()).expect("after three cuts");
            assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
            let seen = server.seen();
            let gets = seen.iter().filter(|s| s.path.starts_with("/store/") && s.method == "GET");
            let ranges: Vec<_> = gets.map(|s| s.range.as_deref().unwrap_or("all")).collect();
            assert_eq!(ranges.len(), 4, "{ranges:?}");
            assert_eq!(ranges[..2], ["all", "bytes=100000-"]);
            assert_eq!(ranges[2], if no_ranges { "bytes=100000-" } else { "bytes=200000-" });
        }
    }

    /// The machine lost its network; a later start goes on.
    #[test]
    fn what_has_arrived_is_kept_for_the_next_start() {
        let (dir, server, hub) = start(Faults { cut: (0, 99), ..Faults::default() });
        let partial = weights_blob(&dir).with_extension("incomplete");
        fs::create_dir_all(partial.parent().expect("a folder")).expect("a folder");
        fs::write(&partial, &weights()[..300_000]).expect("the first part");
        let error = hub.folder(&repo()).expect_err("nothing more comes");
        assert!(error.contains("300000 of 700000") && error.contains("are kept"), "{error}");
        assert_eq!(fs::metadata(&partial).expect("still there").len(), 300_000);
        assert!(
            !dir.path().join("models--org--name/refs/main").exists(),
            "no branch without a whole snapshot"
        );
        server.set(Faults::default());
        let folder = hub.folder(&repo()).expect("the network is back");
        assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
        assert_eq!(server.seen().last().and_then(|s| s.range.clone()).as_deref(), Some("bytes=300000-"));
        assert!(!partial.exists());
    }

    #[test]
    fn refusals_of_the_hub_are_said_in_words() {
        let cases = [
            ((404, "RepoNotFound"), "no such repository"),
            ((401, "RepoNotFound"), "no such repository"),
            ((401, "GatedRepo"), "access must be granted"),
            ((403, "GatedRepo"), "access must be granted"),
            ((404, "RevisionNotFound"), "no such revision"),
            ((500, ""), "answers 500"),
        ];
        for (refuse, part) in cases {
            let (_dir, _server, hub) = start(Faults { refuse: Some(refuse), ..Faults::default() });
            let error = hub.folder(&repo()).expect_err(part);
            assert!(error.contains(part) && !error.contains("hf_secret"), "{refuse:?}: {error}");
        }
        let dir = TempDir::new();
        let error =
            hub_at(dir.path(), "http://127.0.0.1:1", &[]).folder(&repo()).expect_err("nobody listens");
        assert!(error.contains("127.0.0.1:1"), "{error}");
    }

    #[test]
    fn wrong_bytes_and_wrong_sizes_are_thrown_away() {
        for (faults, part) in [
            (Faults { damage: true, ..Faults::default() }, "have the hash"),
            (Faults { more: 5, ..Faults::default() }, "of 700005 bytes"),
        ] {
            let (dir, server, hub) = start(faults);
            let error = hub.folder(&repo()).expect_err(part);
            assert!(error.contains(part), "{error}");
            assert!(!weights_blob(&dir).exists());
            // Once the hub is right again, so is the cache.
            server.set(Faults::default());
            let folder = hub.folder(&repo()).expect("sound bytes");
            assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
        }
    }

    /// A partial file that is longer than the file, or not its beginning, must not stay for ever.
    #[test]
    fn a_partial_file_of_something_else_is_replaced() {
        for junk in [vec![7u8; 700_001], vec![7u8; 10]] {
            let (dir, _server, hub) = start(Faults::default());
            let partial = weights_blob(&dir).with_extension("incomplete");
            fs::create_dir_all(partial.parent().expect("a folder")).expect("a folder");
            fs::write(&partial, &junk).expect("junk");
            let folder = hub.folder(&repo()).expect("it is fetched anew");
            assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
        }
    }

    #[test]
    fn two_at_once_fetch_a_file_once() {
        let (_dir, server, hub) = start(Faults::default());
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let hub = hub.clone();
                std::thread::spawn(move || hub.folder(&repo()))
            })
            .collect();
        for thread in threads {
            let folder = thread.join().expect("no panic").expect("a folder");
            assert_eq!(fs::read(folder.join("model.safetensors")).expect("weights"), weights());
        }
        let gets =
            server.seen().iter().filter(|s| s.path.starts_with("/store/") && s.method == "GET").count();
        assert_eq!(gets, 1);
    }

    #[test]
    fn shards_come_as_the_index_says() {
        let index =
            br#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}}"#;
        let mut all = files();
        all.retain(|(name, _)| *name != "model.safetensors");
        all.push(("model.safetensors.index.json", index.to_vec()));
        all.push(("m-1.safetensors", vec![1; 10]));
        all.push(("old.safetensors", vec![3; 10]));
        let (dir, server) = (TempDir::new(), TestHub::start(&all, Faults::default()));
        let hub = hub_at(dir.path(), &server.endpoint(), &[]);
        let error = hub.folder(&repo()).expect_err("a shard is not there");
        assert!(error.contains("m-2.safetensors") && error.contains("not there"), "{error}");
        all.push(("m-2.safetensors", vec![2; 10]));
        let server = TestHub::start(&all, Faults::default());
        let folder = hub_at(dir.path(), &server.endpoint(), &[]).folder(&repo()).expect("both shards");
        assert_eq!(fs::read(folder.join("m-2.safetensors")).expect("a shard"), [2; 10]);
        assert!(!folder.join("old.safetensors").exists());
    }

    /// What this server has fetched, Python finds without asking anybody.
    #[test]
    fn huggingface_hub_finds_what_was_fetched() {
        // `.ci/run` names a Python with the package.
        let Some(python) = std::env::var_os("TOKENROUTER_CLIENT_PYTHON") else {
            assert!(
                std::env::var("TOKENROUTER_NO_SKIP").as_deref() != Ok("1"),
                "skipped, which is forbidden here"
            );
            return;
        };
        let (dir, _server, hub) = start(Faults::default());
        let folder = hub.folder(&repo()).expect("it is fetched");
        let code = "import sys; from huggingface_hub import snapshot_download as find; \
                    print(find('org/name', cache_dir=sys.argv[1], local_files_only=True))";
        let mut command = std::process::Command::new(python);
        command.args(["-c", code]).arg(dir.path()).env("HF_ENDPOINT", "http://127.0.0.1:1");
        let output = command.output().expect("Python starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert_eq!(Path::new(&found), folder);
    }
}
