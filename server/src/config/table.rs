//! Every key of the configuration: type, default and meaning. The only place that says so.

use super::keys::{Form, Key, Section};
use super::kind::Kind::{
    Above, Addr, Bool, Bytes, Int, Ints, Number, Other, Path, Seconds, Text, Texts, Word,
};

/// The sections in the order of the reference and of `--print-config`.
pub(crate) const SECTIONS: &[Section] = &[
    Section { name: "", form: Form::Top, about: "Before the first section.", keys: TOP, open: false },
    Section {
        name: "model",
        form: Form::Many,
        about: "One section per model. The first is the one that answers enter. All need the same tokenizer.",
        keys: MODEL,
        open: false,
    },
    Section {
        name: "router",
        form: Form::Once,
        about: "How tokens are routed under `server.served_model_name`. Every further key is a parameter of that \
                router (README, \"Routers\"). A deployment of one model needs no such section.",
        keys: ROUTER,
        open: true,
    },
    Section {
        name: "route",
        form: Form::Many,
        about: "A further router under a served name of its own. Every further key is a parameter of that router.",
        keys: ROUTE,
        open: true,
    },
    Section {
        name: "scheduling",
        form: Form::Once,
        about: "When models launch steps. It changes speed, never an answer.",
        keys: SCHEDULING,
        open: false,
    },
    Section { name: "budget", form: Form::Once, about: "Memory.", keys: BUDGET, open: false },
    Section { name: "cuda", form: Form::Once, about: "How GPUs are used.", keys: CUDA, open: false },
    Section { name: "server", form: Form::Once, about: "Sockets and limits.", keys: SERVER, open: false },
    Section {
        name: "request_limits",
        form: Form::Once,
        about: "What the `token_routing` field of a request may set.",
        keys: REQUEST_LIMITS,
        open: false,
    },
    Section {
        name: "chat",
        form: Form::Once,
        about: "Chat templates and what is parsed out of answers.",
        keys: CHAT,
        open: false,
    },
    Section {
        name: "faults",
        form: Form::Once,
        about: "What happens when a model is lost or stands still.",
        keys: FAULTS,
        open: false,
    },
    Section { name: "log", form: Form::Once, about: "The log on standard error.", keys: LOG, open: false },
    Section {
        name: "hub",
        form: Form::Once,
        about: "Where models with a `repo` come from. The access token is read from `HF_TOKEN`, or from the file that \
                `huggingface_hub` keeps it in; it is no key.",
        keys: HUB,
        open: false,
    },
];

const TOP: &[Key] =
    &[Key::new("device", Word(&["cpu", "cuda"]), "cpu", "What the models run on.").flag("device")];

const MODEL: &[Key] = &[
    Key::optional("name", Text, "Name in answers and metrics, and the name to ask for this model alone.")
        .required(),
    Key::optional("path", Path, "Folder of the checkpoint (Hugging Face layout). Either this or `repo`."),
    Key::optional(
        "repo",
        Text,
        "Name of a repository like \"Qwen/Qwen3-0.6B\": its snapshot in the local Hugging Face cache, downloaded when \
         it is not there (`[hub]`).",
    ),
    Key::optional("revision", Text, "Branch, tag or commit of `repo`; absent: \"main\"."),
    Key::new("devices", Ints, "[0]", "The devices that hold it, one equal part each (tensor parallelism)."),
    Key::new(
        "threads",
        Int(0, 512),
        "0",
        "Threads of its worker groups on the CPU, divided over its devices; 0: as many as `cores` names, and without \
         them one per core, and all such models share the cores: a model that works alone has all of them.",
    ),
    Key::optional(
        "cores",
        Ints,
        "Cores of the CPU that its threads are bound to, like [0, 1]; absent: wherever the system puts them.",
    ),
    Key::optional(
        "weights",
        Word(&["int8"]),
        "How its linear layers are kept in memory, on the CPU: \"int8\" makes 8-bit integers with a scale for every 32 \
         columns at the start, which halves bf16 and what one request waits for, and costs some accuracy \
         (docs/performance.md); absent: as the checkpoint has them.",
    ),
    Key::new("max_batch", Int(1, 4096), "32", "Most rows in one step."),
    Key::new(
        "max_step_tokens",
        Int(0, 65_536),
        "0",
        "Most tokens fed in one step, at least `max_batch`; longer prompts are fed in pieces, and who waits for a token beside \
         them waits for a piece. 0: 128 on the CPU, 512 on GPUs, or `max_batch` where that is more.",
    ),
    Key::optional(
        "price",
        Number(0.0, 1e12),
        "Price of a million tokens fed through it, in whatever unit all models use; absent: answers name no cost.",
    ),
];

const ROUTER: &[Key] = &[
    Key::optional(
        "name",
        Text,
        "Name of the algorithm: `single`, `fixed`, `r2r`, `citer`, `co-llm`, `r-stitch`, `me`, `query`, or one that \
         the binary registers.",
    )
    .required()
    .flag("router"),
    Key::optional("file", Path, "Folder of the router file that scores the first model's tokens.").flag("router-file"),
];

const ROUTE: &[Key] = &[
    Key::optional("name", Text, "The name that clients ask for.").required(),
    Key::optional("router", Text, "Name of the algorithm, as `router.name`.").required(),
    Key::optional("file", Path, "As `router.file`."),
];

const SCHEDULING: &[Key] = &[
    Key::new(
        "policy",
        Text,
        "auto",
        "`auto` (lookahead until there is a plan, then the plan), or a fixed one: `lookahead`, `eager`, `threshold`, \
         `threshold+hold`, `exclusive`, `model-sync` or `step-sync` (README, \"Tuning\").",
    ),
    Key::optional(
        "threshold",
        Other("a whole number, or a list with an entry per model"),
        "Ready requests at which a model launches. An entry of the list may be a list by the number of requests.",
    ),
    Key::optional(
        "beside",
        Other("a whole number, or a list by the number of requests"),
        "Ready requests that the fastest model needs to start beside another one (`threshold+hold`).",
    ),
    Key::optional(
        "alpha",
        Other("a number above 0"),
        "Weight of expected arrivals against waiting requests (`lookahead` and `auto`); absent: 1.",
    ),
    Key::optional(
        "p99_inter_token_ms",
        Other("milliseconds, above 0 and at most an hour"),
        "The most that the 99th percentile of the time between two tokens may be, as far as a plan can help it (`auto`).",
    ),
    Key::new(
        "handoff",
        Text,
        "resume",
        "What a request takes along to another model: `resume` (its pages, at once) or `readmit` (nothing; for \
         comparison).",
    ),
    Key::optional(
        "profile",
        Path,
        "Step times measured on this machine (`tokenrouter profile`): estimates begin with them. One of other models or \
         threads is refused, one of another machine is left out with a warning.",
    ),
];

const BUDGET: &[Key] = &[
    Key::new("memory", Bytes, "2GiB", "Bytes for weights, buffers and KV caches together, on the CPU.")
        .flag("memory"),
    Key::optional(
        "kv_dtype",
        Word(&["f32", "f16", "bf16"]),
        "Type of the KV cache; absent: f16 on the CPU, and bf16, the only one, on GPUs.",
    ),
    Key::new(
        "max_model_len",
        Int(0, u32::MAX as i64),
        "0",
        "Longest request in tokens, prompt and answer; 0 takes the smallest maximum of the models.",
    )
    .flag("max-model-len"),
    Key::new(
        "prefix_cache",
        Bool,
        "true",
        "Whether prompts with a common beginning share its cache pages, also after the first has ended.",
    ),
    Key::new(
        "reserve_pages",
        Int(0, u32::MAX as i64),
        "8",
        "Pages of 16 tokens that must stay free when a request is admitted, for those that run to grow.",
    ),
];

const CUDA: &[Key] = &[
    Key::new("memory_fraction", Above(0.0, 1.0), "0.9", "Share of each device's memory that may be used.")
        .flag("gpu-memory-utilization"),
    Key::optional("memory", Bytes, "Bytes to use on each device instead."),
    Key::new("graphs", Bool, "true", "Whether steps run from graphs captured at the start."),
    Key::new("largest_bucket", Int(8, 4096), "256", "Tokens of the largest captured step, a power of two."),
];

const SERVER: &[Key] = &[
    Key::new("http", Addr, "127.0.0.1:8000", "Address of the HTTP endpoint; port 0 takes a free one.")
        .flag("http"),
    Key::optional("tcp", Addr, "Address of the raw TCP endpoint; absent: none.").flag("tcp"),
    Key::new("served_model_name", Text, "tokenrouter", "The name under which the routed models are served.")
        .flag("served-model-name"),
    Key::optional(
        "api_keys",
        Texts,
        "Keys that clients must send (`Authorization: Bearer`); absent or empty: none.",
    )
    .flag("api-key")
    .secret(),
    Key::optional("api_key_file", Path, "More keys, one per line; lines that begin with `#` are comments.")
        .flag("api-key-file"),
    Key::new("metrics_need_key", Bool, "false", "Whether `/metrics` needs a key too."),
    Key::new(
        "cors_origins",
        Texts,
        "[]",
        "Origins whose pages may call this server from a browser; \"*\" allows all.",
    )
    .flag("cors-origin"),
    Key::optional(
        "tls_cert",
        Path,
        "Certificate chain (PEM) of the endpoints; needs `tls_key` and the feature `tls`.",
    )
    .flag("tls-cert"),
    Key::optional("tls_key", Path, "Private key (PEM) of the certificate.").flag("tls-key"),
    Key::new("max_running", Int(1, 4096), "64", "Most requests admitted at once.").flag("max-num-seqs"),
    Key::new(
        "max_waiting",
        Int(1, 1 << 20),
        "256",
        "Most requests that wait for admission; one more gets 429.",
    )
    .flag("max-queue"),
    Key::new("max_connections", Int(1, 1 << 20), "1024", "Most connections at once.").flag("max-connections"),
    Key::new(
        "max_line_requests",
        Int(1, 1 << 20),
        "64",
        "Most requests that run at once on one raw TCP connection.",
    ),
    Key::new("max_body_bytes", Int(1, 1 << 40), "16777216", "Largest request body in bytes.")
        .flag("max-body-bytes"),
    Key::new("max_n", Int(1, 1024), "8", "Most answers to one prompt (`n`).").flag("max-n"),
    Key::new("tokenizer_threads", Int(1, 64), "1", "Threads that parse and tokenize."),
    Key::new(
        "queue_timeout_s",
        Seconds,
        "0",
        "A request that waits longer for admission gets 503; 0: it may wait for ever.",
    )
    .flag("queue-timeout"),
    Key::new(
        "request_timeout_s",
        Seconds,
        "0",
        "Longest time of a request from its arrival to its end; 0: no limit.",
    )
    .flag("request-timeout"),
    Key::new(
        "write_timeout_s",
        Seconds,
        "30",
        "A client that takes no byte, or leaves its output full, for so long is cancelled.",
    )
    .flag("write-timeout"),
    Key::new("keep_alive_s", Seconds, "75", "How long an idle HTTP connection stays open."),
    Key::new(
        "drain_delay_s",
        Seconds,
        "0",
        "How long the listener at least stays open, answering 503, after SIGTERM.",
    )
    .flag("drain-delay"),
    Key::new("shutdown_timeout_s", Seconds, "30", "What running requests get to end after SIGTERM.")
        .flag("shutdown-timeout"),
    Key::new(
        "stall_timeout_s",
        Seconds,
        "60",
        "`/health` says 503 when a step has been in flight for so long, per 64 tokens that it feeds.",
    )
    .flag("stall-seconds"),
];

const REQUEST_LIMITS: &[Key] = &[
    Key::new(
        "threshold",
        Other("true, false, or the lowest and the highest threshold as [0.01, 0.1]"),
        "true",
        "Whether a request may bring its own threshold, or between which numbers; with numbers, `always` and `never` \
         are refused.",
    ),
    Key::optional(
        "max_llm_fraction",
        Number(0.0, 1.0),
        "The largest share of an answer that models beside the entry may write on a routed name; a request may ask \
         for less.",
    ),
    Key::new(
        "router",
        Bool,
        "true",
        "Whether a request may name another configured route (`token_routing.router`).",
    ),
];

const CHAT: &[Key] = &[
    Key::optional("template", Path, "A chat template (Jinja) instead of the checkpoint's.")
        .flag("chat-template"),
    Key::new(
        "reasoning_parser",
        Word(&["auto", "none", "qwen3"]),
        "auto",
        "How reasoning is told from the answer; `auto` goes by the chat template.",
    )
    .flag("reasoning-parser"),
    Key::new(
        "reasoning_field",
        Word(&["reasoning_content", "reasoning", "both"]),
        "reasoning_content",
        "The field of a message that holds the reasoning.",
    ),
    Key::new(
        "tool_parser",
        Word(&["auto", "none", "hermes", "llama3_json"]),
        "auto",
        "How tool calls are told from the answer; `auto` goes by the chat template.",
    )
    .flag("tool-call-parser"),
    Key::new("allow_request_template", Bool, "false", "Whether a request may bring its own `chat_template`."),
    Key::new(
        "guard_text",
        Bool,
        "true",
        "Whether the texts of messages stay text where they spell control tokens.",
    ),
];

const FAULTS: &[Key] = &[
    Key::new(
        "on_peer_loss",
        Word(&["fail", "continue"]),
        "fail",
        "When a model is lost: fail the requests that need it, or go on with the other model and say so in the answer.",
    )
    .flag("on-peer-loss"),
    Key::new(
        "step_timeout_s",
        Seconds,
        "60",
        "A model counts as lost while a step of it takes longer than this per 64 tokens fed; 0: no limit.",
    ),
];

const LOG: &[Key] = &[
    Key::new("format", Word(&["text", "json"]), "text", "How a line is written.").flag("log-format"),
    Key::new("level", Text, "info", "What is logged: `error`, `warn`, `info`, `debug` or `trace`, or a filter like \"info,tokenrouter_server=debug\". `TOKENROUTER_LOG` goes before it.")
        .flag("log-level"),
    Key::new("prompts", Bool, "false", "Whether prompts and answers are logged.").flag("log-prompts"),
    Key::new(
        "throughput_every_s",
        Seconds,
        "10",
        "How often a line says running, waiting and pending requests and the speed per model while there is work; 0: never.",
    ),
];

const HUB: &[Key] = &[
    Key::optional(
        "cache",
        Path,
        "The cache folder; absent: as `huggingface_hub` finds it (`HF_HUB_CACHE`, `HF_HOME`/hub, \
         ~/.cache/huggingface/hub).",
    ),
    Key::optional(
        "endpoint",
        Text,
        "Where to download from; absent: `HF_ENDPOINT`, else https://huggingface.co.",
    ),
    Key::new(
        "download",
        Bool,
        "true",
        "Whether missing files are downloaded; `HF_HUB_OFFLINE=1` forbids it too.",
    ),
];
