//! A pickle reader that executes nothing: it knows the instructions that torch writes (protocols 2 to 5) and a short
//! list of names ([`Global`]), each with a meaning of its own here. Every other name or instruction ends the reading
//! with an error that says which.
//!
//! Memory is linear in the pickle, whatever it says: values are small and refer to nodes of one arena, so a cycle or
//! a deep nesting costs nothing to drop; lengths are compared with what is left before anything is taken; stack, nodes
//! and items have limits.

use std::collections::HashMap;

use super::globals::{Global, StorageType};

/// Values on the stack at most; torch writes containers in batches of 1000.
const MOST_STACK: usize = 1 << 16;
/// Containers, storages and tensors at most.
const MOST_NODES: usize = 1 << 20;
/// Entries of all containers and of the memo at most, each.
const MOST_ITEMS: usize = 1 << 21;
/// Dimensions of a tensor at most.
const MOST_DIMS: usize = 8;

/// Names a node of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id(usize);

/// A value; texts and bytes lie in the pickle itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    List(Id),
    Tuple(Id),
    Dict(Id),
    Global(Global),
    Storage(Id),
    Tensor(Id),
}

enum Node<'a> {
    Items(Vec<Value<'a>>),
    Pairs(Vec<(Value<'a>, Value<'a>)>),
    Storage(Storage<'a>),
    Tensor(Tensor<'a>),
}

/// Numbers in an entry of the container.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Storage<'a> {
    pub(super) kind: StorageType,
    pub(super) key: &'a str,
    pub(super) len: u64,
}

/// A view of a storage, in its values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor<'a> {
    pub(super) storage: Storage<'a>,
    pub(super) offset: u64,
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
}

/// What a pickle says.
pub(super) struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    root: Value<'a>,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle to its end.
    pub(super) fn read(data: &'a [u8]) -> Result<Self, String> {
        let mut machine = Machine {
            data,
            at: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            nodes: Vec::new(),
            items: 0,
        };
        let root = machine.run().map_err(|e| format!("byte {}: {e}", machine.at))?;
        Ok(Self { nodes: machine.nodes, root })
    }

    /// The value that it is about.
    pub(super) fn root(&self) -> Value<'a> {
        self.root
    }

    /// The entries of a list or tuple.
    pub(super) fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::List(id) | Value::Tuple(id) => items(&self.nodes, id),
            _ => None,
        }
    }

    /// The entries of a dictionary, as written.
    pub(super) fn pairs(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        let Value::Dict(id) = value else { return None };
        match self.nodes.get(id.0) {
            Some(Node::Pairs(pairs)) => Some(pairs),
            _ => None,
        }
    }

    /// The entry `key` of a dictionary; the last one written counts.
    pub(super) fn get(&self, dict: Value<'a>, key: &str) -> Option<Value<'a>> {
        self.pairs(dict)?.iter().rev().find(|(k, _)| *k == Value::Text(key)).map(|(_, v)| *v)
    }

    /// A tensor.
    pub(super) fn tensor(&self, value: Value<'a>) -> Option<&Tensor<'a>> {
        let Value::Tensor(id) = value else { return None };
        match self.nodes.get(id.0) {
            Some(Node::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }
}

fn items<'n, 'a>(nodes: &'n [Node<'a>], id: Id) -> Option<&'n [Value<'a>]> {
    match nodes.get(id.0) {
        Some(Node::Items(items)) => Some(items),
        _ => None,
    }
}

struct Machine<'a> {
    data: &'a [u8],
    at: usize,
    stack: Vec<Value<'a>>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    nodes: Vec<Node<'a>>,
    /// Entries of all containers.
    items: usize,
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value<'a>, String> {
        loop {
            match self.byte()? {
                b'.' => return self.pop(),
                op => self.step(op)?,
            }
        }
    }

    fn step(&mut self, op: u8) -> Result<(), String> {
        match op {
            0x80 => self.protocol(),
            // A frame says how much may be read at once.
            0x95 => self.take(8).map(|_| ()),
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'J' => self.array().and_then(|b| self.push(Value::Int(i32::from_le_bytes(b).into()))),
            b'K' => self.byte().and_then(|b| self.push(Value::Int(b.into()))),
            b'M' => self.array().and_then(|b| self.push(Value::Int(u16::from_le_bytes(b).into()))),
            0x8a => self.long(),
            b'G' => self.array().and_then(|b| self.push(Value::Float(f64::from_be_bytes(b)))),
            b'X' => self.len32().and_then(|n| self.text(n)),
            0x8c => self.byte().and_then(|n| self.text(n.into())),
            0x8d => self.len64().and_then(|n| self.text(n)),
            b'B' => self.len32().and_then(|n| self.bytes(n)),
            b'C' => self.byte().and_then(|n| self.bytes(n.into())),
            b'(' => self.mark(),
            b']' => self.container(Vec::new(), Value::List),
            b')' => self.container(Vec::new(), Value::Tuple),
            b'}' => self.dict(),
            b't' => self.since_mark().and_then(|items| self.container(items, Value::Tuple)),
            0x85..=0x87 => self.tuple(usize::from(op - 0x84)),
            b'a' => self.pop().and_then(|x| self.append(vec![x])),
            b'e' => self.since_mark().and_then(|items| self.append(items)),
            b's' => self.set_item(),
            b'u' => self.since_mark().and_then(|items| self.set_items(&items)),
            b'q' => self.byte().and_then(|i| self.remember(i.into())),
            b'r' => self.array().and_then(|b| self.remember(u32::from_le_bytes(b))),
            0x94 => self.remember(self.memo.len() as u32),
            b'h' => self.byte().and_then(|i| self.recall(i.into())),
            b'j' => self.array().and_then(|b| self.recall(u32::from_le_bytes(b))),
            b'c' => self.global(),
            0x93 => self.stack_global(),
            b'Q' => self.storage(),
            b'R' => self.call(),
            b'b' => self.build(),
            b'0' => self.pop().map(|_| ()),
            other => Err(format!("instruction 0x{other:02x} is none that torch writes into a router")),
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let rest = self.data.len() - self.at;
        if len > rest {
            return Err(format!("is truncated or lies: {len} bytes are asked for, {rest} are left"));
        }
        self.at += len;
        Ok(&self.data[self.at - len..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| "is truncated".to_owned())
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.array::<1>().map(|[b]| b)
    }

    fn len32(&mut self) -> Result<usize, String> {
        self.array().map(|b| u32::from_le_bytes(b) as usize)
    }

    fn len64(&mut self) -> Result<usize, String> {
        let len = u64::from_le_bytes(self.array()?);
        usize::try_from(len).map_err(|_| format!("a text of {len} bytes"))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), String> {
        if self.stack.len() >= MOST_STACK {
            return Err(format!("more than {MOST_STACK} values wait on the stack"));
        }
        self.stack.push(value);
        Ok(())
    }

    /// The top of the stack, which must lie above the last mark.
    fn pop(&mut self) -> Result<Value<'a>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("takes a value where none is".into());
        }
        self.stack.pop().ok_or_else(|| "takes a value where none is".into())
    }

    fn top(&self) -> Result<Value<'a>, String> {
        self.stack.last().copied().ok_or_else(|| "looks at a value where none is".into())
    }

    fn mark(&mut self) -> Result<(), String> {
        if self.marks.len() >= MOST_STACK {
            return Err(format!("more than {MOST_STACK} marks"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn since_mark(&mut self) -> Result<Vec<Value<'a>>, String> {
        let mark = self.marks.pop().ok_or("closes a list that was not opened")?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn node(&mut self, node: Node<'a>) -> Result<Id, String> {
        if self.nodes.len() >= MOST_NODES {
            return Err(format!("more than {MOST_NODES} objects"));
        }
        self.nodes.push(node);
        Ok(Id(self.nodes.len() - 1))
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.items += more;
        if self.items > MOST_ITEMS {
            return Err(format!("more than {MOST_ITEMS} entries"));
        }
        Ok(())
    }

    fn protocol(&mut self) -> Result<(), String> {
        match self.byte()? {
            2..=5 => Ok(()),
            other => Err(format!("pickle protocol {other}; torch writes 2 to 5")),
        }
    }

    fn long(&mut self) -> Result<(), String> {
        let len = self.byte()?;
        let bytes = self.take(len.into())?;
        if bytes.len() > 8 {
            return Err(format!("a whole number of {len} bytes"));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = if negative { [0xff; 8] } else { [0; 8] };
        wide[..bytes.len()].copy_from_slice(bytes);
        self.push(Value::Int(i64::from_le_bytes(wide)))
    }

    fn text(&mut self, len: usize) -> Result<(), String> {
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes).map_err(|_| "a text that is not UTF-8")?;
        self.push(Value::Text(text))
    }

    fn bytes(&mut self, len: usize) -> Result<(), String> {
        let bytes = self.take(len)?;
        self.push(Value::Bytes(bytes))
    }

    fn container(&mut self, items: Vec<Value<'a>>, kind: fn(Id) -> Value<'a>) -> Result<(), String> {
        self.count(items.len())?;
        let id = self.node(Node::Items(items))?;
        self.push(kind(id))
    }

    fn dict(&mut self) -> Result<(), String> {
        let id = self.node(Node::Pairs(Vec::new()))?;
        self.push(Value::Dict(id))
    }

    fn tuple(&mut self, len: usize) -> Result<(), String> {
        let mut items = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        self.container(items, Value::Tuple)
    }

    fn append(&mut self, items: Vec<Value<'a>>) -> Result<(), String> {
        self.count(items.len())?;
        match self.top()? {
            Value::List(id) => match self.nodes.get_mut(id.0) {
                Some(Node::Items(list)) => list.extend(items),
                _ => return Err("appends to what is no list".into()),
            },
            _ => return Err("appends to what is no list".into()),
        }
        Ok(())
    }

    fn set_item(&mut self) -> Result<(), String> {
        let value = self.pop()?;
        let key = self.pop()?;
        self.set_items(&[key, value])
    }

    fn set_items(&mut self, items: &[Value<'a>]) -> Result<(), String> {
        self.count(items.len())?;
        if !items.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        let Value::Dict(id) = self.top()? else {
            return Err("sets an entry of what is no dictionary".into());
        };
        let Some(Node::Pairs(pairs)) = self.nodes.get_mut(id.0) else {
            return Err("sets an entry of what is no dictionary".into());
        };
        pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        Ok(())
    }

    fn remember(&mut self, index: u32) -> Result<(), String> {
        if self.memo.len() >= MOST_ITEMS {
            return Err(format!("more than {MOST_ITEMS} remembered values"));
        }
        let top = self.top()?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall(&mut self, index: u32) -> Result<(), String> {
        let value = self.memo.get(&index).copied();
        self.push(value.ok_or_else(|| format!("recalls value {index}, which was not remembered"))?)
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.data[self.at..];
        let len = rest.iter().take(256).position(|b| *b == b'\n').ok_or("a name without an end")?;
        let line = self.take(len + 1)?;
        std::str::from_utf8(&line[..len]).map_err(|_| "a name that is not UTF-8".to_owned())
    }

    fn global(&mut self) -> Result<(), String> {
        let (module, name) = (self.line()?, self.line()?);
        self.push(Value::Global(Global::named(module, name)?))
    }

    fn stack_global(&mut self) -> Result<(), String> {
        let (name, module) = (self.pop()?, self.pop()?);
        match (module, name) {
            (Value::Text(module), Value::Text(name)) => {
                self.push(Value::Global(Global::named(module, name)?))
            }
            _ => Err("a name that is no text".into()),
        }
    }

    /// torch's references to storages: `("storage", type, key, device, length)`.
    fn storage(&mut self) -> Result<(), String> {
        let wanted = "a reference that is no torch storage";
        let Value::Tuple(id) = self.pop()? else { return Err(wanted.into()) };
        let storage = match items(&self.nodes, id) {
            Some(
                [
                    Value::Text("storage"),
                    Value::Global(Global::Storage(kind)),
                    Value::Text(key),
                    Value::Text(_),
                    Value::Int(len),
                ],
            ) => u64::try_from(*len)
                .map(|len| Storage { kind: *kind, key, len })
                .map_err(|_| wanted.to_owned())?,
            _ => return Err(wanted.into()),
        };
        let id = self.node(Node::Storage(storage))?;
        self.push(Value::Storage(id))
    }

    /// The few calls that have a meaning here; nothing runs.
    fn call(&mut self) -> Result<(), String> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let Value::Global(callee) = callee else { return Err("calls what is no function".into()) };
        let Value::Tuple(id) = arguments else { return Err(format!("calls {callee} without a tuple")) };
        let arguments = items(&self.nodes, id).unwrap_or(&[]);
        match (callee, arguments) {
            (Global::OrderedDict, []) => self.dict(),
            (Global::RebuildTensor, [Value::Storage(storage), Value::Int(offset), size, stride, ..]) => {
                let tensor = self.rebuild(*storage, *offset, *size, *stride)?;
                let id = self.node(Node::Tensor(tensor))?;
                self.push(Value::Tensor(id))
            }
            (Global::RebuildParameter, [tensor @ Value::Tensor(_), ..]) => {
                let tensor = *tensor;
                self.push(tensor)
            }
            _ => Err(format!("calls {callee} with arguments that torch does not write")),
        }
    }

    fn rebuild(
        &self,
        storage: Id,
        offset: i64,
        size: Value<'a>,
        stride: Value<'a>,
    ) -> Result<Tensor<'a>, String> {
        let Some(Node::Storage(storage)) = self.nodes.get(storage.0) else {
            return Err("a tensor without a storage".into());
        };
        let sizes = |value: Value<'a>| {
            let Value::Tuple(id) = value else { return None };
            let list = items(&self.nodes, id).filter(|l| l.len() <= MOST_DIMS)?;
            let size = |v: &Value<'a>| if let Value::Int(n) = v { usize::try_from(*n).ok() } else { None };
            list.iter().map(size).collect::<Option<Vec<usize>>>()
        };
        let (shape, strides) = sizes(size).zip(sizes(stride)).ok_or("a tensor whose sizes are no numbers")?;
        let offset = u64::try_from(offset).map_err(|_| "a tensor that starts before its storage")?;
        if shape.len() != strides.len() {
            return Err("a tensor with more sizes than strides".into());
        }
        Ok(Tensor { storage: *storage, offset, shape, strides })
    }

    /// Sets attributes; the only ones that torch writes here are a state dictionary's `_metadata`, which nobody reads.
    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        match (self.top()?, state) {
            (Value::Dict(_), Value::Dict(_)) => Ok(()),
            _ => Err("sets attributes of an object that is no dictionary".into()),
        }
    }
}
