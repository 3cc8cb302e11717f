//! Checkpoints in the shapes of real models with random bf16 weights: `config.json` and one safetensors file, written as
//! a stream and taken again when they are already there.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes written at a time; a multiple of 8.
const CHUNK: usize = 8 << 20;
/// Bytes that stay free on the disk.
const SPARE: u64 = 2 << 30;

/// A Qwen3 decoder. Sizes are counts of elements.
#[derive(Clone, Copy)]
pub(crate) struct Decoder {
    pub(crate) name: &'static str,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) q_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) inner: usize,
    pub(crate) vocab: usize,
    /// Whether the embedding is the output matrix.
    pub(crate) tied: bool,
}

/// A tensor's name, shape, and whether it is a norm, whose weights are 1.
struct Tensor {
    name: String,
    shape: Vec<usize>,
    norm: bool,
}

impl Decoder {
    pub(crate) const QWEN3_0_6B: Self = Self {
        name: "Qwen3-0.6B",
        hidden: 1024,
        layers: 28,
        q_heads: 16,
        kv_heads: 8,
        head_dim: 128,
        inner: 3072,
        vocab: 151_936,
        tied: true,
    };
    pub(crate) const QWEN3_8B: Self = Self {
        name: "Qwen3-8B",
        hidden: 4096,
        layers: 36,
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        inner: 12_288,
        vocab: 151_936,
        tied: false,
    };
    /// For the emulation.
    pub(crate) const TOY: Self = Self {
        name: "toy",
        hidden: 32,
        layers: 1,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        inner: 64,
        vocab: 96,
        tied: true,
    };
    /// For the emulation, beside it.
    pub(crate) const LARGE_TOY: Self =
        Self { name: "large-toy", hidden: 64, layers: 2, q_heads: 4, tied: false, ..Self::TOY };

    /// Bytes of weights that a step reads: all, less an embedding that is not the output matrix.
    pub(crate) fn step_bytes(&self) -> u64 {
        let unread = if self.tied { 0 } else { self.vocab * self.hidden * 2 };
        self.bytes() - unread as u64
    }

    /// Bytes of the keys and values of one token, in bf16.
    pub(crate) fn kv_bytes(&self) -> u64 {
        (self.layers * 2 * self.kv_heads * self.head_dim * 2) as u64
    }

    fn bytes(&self) -> u64 {
        self.tensors().iter().map(Tensor::bytes).sum()
    }

    /// In the order of the file.
    fn tensors(&self) -> Vec<Tensor> {
        let mut all = Vec::new();
        let mut push = |name: String, shape: &[usize], norm| {
            all.push(Tensor { name: format!("{name}.weight"), shape: shape.to_vec(), norm });
        };
        let (hidden, inner) = (self.hidden, self.inner);
        let (q, kv) = (self.q_heads * self.head_dim, self.kv_heads * self.head_dim);
        push("model.embed_tokens".into(), &[self.vocab, hidden], false);
        for layer in 0..self.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            push(name("input_layernorm"), &[hidden], true);
            push(name("self_attn.q_proj"), &[q, hidden], false);
            push(name("self_attn.k_proj"), &[kv, hidden], false);
            push(name("self_attn.v_proj"), &[kv, hidden], false);
            push(name("self_attn.q_norm"), &[self.head_dim], true);
            push(name("self_attn.k_norm"), &[self.head_dim], true);
            push(name("self_attn.o_proj"), &[hidden, q], false);
            push(name("post_attention_layernorm"), &[hidden], true);
            push(name("mlp.gate_proj"), &[inner, hidden], false);
            push(name("mlp.up_proj"), &[inner, hidden], false);
            push(name("mlp.down_proj"), &[hidden, inner], false);
        }
        push("model.norm".into(), &[hidden], true);
        if !self.tied {
            push("lm_head".into(), &[self.vocab, hidden], false);
        }
        all
    }

    fn config(&self) -> String {
        format!(
            r#"{{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
 "attention_bias": false, "tie_word_embeddings": {}, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6,
 "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
 "num_key_value_heads": {}, "head_dim": {}, "vocab_size": {}, "rope_theta": 1000000.0,
 "max_position_embeddings": 4096, "eos_token_id": 0}}
"#,
            self.tied,
            self.hidden,
            self.inner,
            self.layers,
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.vocab
        )
    }

    /// Length and text of the file's header; tensors begin at a multiple of 8.
    fn header(&self) -> Vec<u8> {
        let mut text = String::from("{");
        let mut start = 0;
        for (i, tensor) in self.tensors().iter().enumerate() {
            let (comma, end) = (if i > 0 { "," } else { "" }, start + tensor.bytes());
            let Tensor { name, shape, .. } = tensor;
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                r#"{comma}"{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            );
            start = end;
        }
        text.push('}');
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        header
    }

    /// The folder of the checkpoint below `root`, written if it is not there or not this one.
    ///
    /// # Errors
    /// In words: too little free disk, or what the operating system says.
    pub(crate) fn ensure(&self, root: &Path) -> Result<PathBuf, String> {
        let dir = root.join(self.name);
        let (config, weights) = (dir.join("config.json"), dir.join("model.safetensors"));
        let header = self.header();
        let length = header.len() as u64 + self.bytes();
        let there = fs::read_to_string(&config).is_ok_and(|text| text == self.config())
            && fs::metadata(&weights).is_ok_and(|meta| meta.len() == length);
        if there {
            return Ok(dir);
        }
        let words = |e: std::io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(&dir).map_err(words)?;
        if length > SPARE && free_bytes(&dir).is_some_and(|free| free < length + SPARE) {
            return Err(format!("{} has too little room for {} MB", dir.display(), length / 1_000_000));
        }
        // Named at the end: what is half written is never taken for a checkpoint.
        let part = dir.join(format!("part-{}", std::process::id()));
        self.write(&header, &part).and_then(|()| fs::rename(&part, &weights)).map_err(words)?;
        fs::write(&config, self.config()).map_err(words)?;
        Ok(dir)
    }

    fn write(&self, header: &[u8], path: &Path) -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(header)?;
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ self.bytes());
        let mut chunk = Vec::with_capacity(CHUNK);
        for tensor in self.tensors() {
            let mut left = tensor.bytes() as usize;
            while left > 0 {
                let now = left.min(CHUNK);
                if tensor.norm {
                    chunk = ONE.to_le_bytes().repeat(now / 2);
                } else {
                    random.fill(&mut chunk, now);
                }
                file.write_all(&chunk)?;
                left -= now;
            }
        }
        file.flush()
    }
}

impl Tensor {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * 2
    }
}

/// 1 in bf16.
const ONE: u16 = 0x3f80;

/// A xorshift of 64 bits.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// `bytes` of bf16 weights of both signs, between 1/128 and 1/64: products of them stay small, and none is zero.
    fn fill(&mut self, chunk: &mut Vec<u8>, bytes: usize) {
        chunk.clear();
        while chunk.len() < bytes {
            let four = self.next() & 0x807f_807f_807f_807f | 0x3c00_3c00_3c00_3c00;
            chunk.extend_from_slice(&four.to_le_bytes());
        }
        chunk.truncate(bytes);
    }
}

/// What `df` says is free where `dir` lies; none where it says nothing.
fn free_bytes(dir: &Path) -> Option<u64> {
    let said = Command::new("df").arg("-Pk").arg(dir).output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
