// Train a program that Onward compiled, with the C library of ONNX Runtime (1.17 or newer) and no crate. Rust 2021.
//
//   rustc --edition 2021 -O train.rs -L DIR -l onnxruntime
//   ./train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]
//
// BATCHES holds one tensor per input and batch, named "<batch>/<input>". Without STATE, training starts from the state
// of the program. Prints the loss of each step and, last, that of the last batch in inference mode. Writes to the
// folder OUT: state.safetensors (to go on with, here or in Python), outputs.safetensors (what the model says about the
// last batch) and model.onnx (the inference model with the trained weights).
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::{env, fs, process};

type Error = Box<dyn std::error::Error>;
type Result<T> = std::result::Result<T, Error>;

// ---------------------------------------------------------------- the C API of ONNX Runtime

#[repr(C)]
struct ApiBase {
    get_api: unsafe extern "C" fn(u32) -> *const *const c_void,
    version: unsafe extern "C" fn() -> *const c_char,
}

#[link(name = "onnxruntime")]
extern "C" {
    fn OrtGetApiBase() -> *const ApiBase;
}

type Handle = *mut c_void;

struct Api(*const *const c_void); // the functions of OrtApi in their order, which never changes

impl Api {
    fn load() -> Result<Api> {
        let table = unsafe { ((*OrtGetApiBase()).get_api)(17) };
        if table.is_null() { Err("ONNX Runtime is older than 1.17".into()) } else { Ok(Api(table)) }
    }

    fn at(&self, index: usize) -> *const c_void {
        unsafe { *self.0.add(index) }
    }

    fn check(&self, status: Handle) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        let message: unsafe extern "C" fn(Handle) -> *const c_char = unsafe { transmute(self.at(2)) };
        let release: unsafe extern "C" fn(Handle) = unsafe { transmute(self.at(93)) };
        let text = unsafe { CStr::from_ptr(message(status)).to_string_lossy().into_owned() };
        unsafe { release(status) };
        Err(text.into())
    }
}

// Call the function of OrtApi at an index with arguments of these types; an error becomes a Rust error.
macro_rules! call {
    ($api:expr, $index:expr, $($value:expr => $kind:ty),+) => {{
        let function: unsafe extern "C" fn($($kind),+) -> Handle = unsafe { transmute($api.at($index)) };
        $api.check(unsafe { function($($value),+) })
    }};
}

macro_rules! release {
    ($api:expr, $index:expr, $value:expr) => {{
        let function: unsafe extern "C" fn(Handle) = unsafe { transmute($api.at($index)) };
        unsafe { function($value) }
    }};
}

struct Runtime {
    api: Api,
    env: Handle,
    allocator: Handle,
}

impl Runtime {
    fn new() -> Result<Runtime> {
        let api = Api::load()?;
        let (mut env, mut allocator): (Handle, Handle) = (null_mut(), null_mut());
        let name = CString::new("onward")?;
        call!(api, 3, 2 => c_int, name.as_ptr() => *const c_char, &mut env => *mut Handle)?; // CreateEnv, warnings
        call!(api, 78, &mut allocator => *mut Handle)?; // GetAllocatorWithDefaultOptions
        Ok(Runtime { api, env, allocator })
    }
}

// ---------------------------------------------------------------- JSON

#[derive(Debug, Clone)]
enum Json {
    Word(String), // a number, true, false or null
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>), // in the order of the file
}

struct Parser<'a>(&'a [u8], usize);

impl Parser<'_> {
    fn parse(text: &[u8]) -> Result<Json> {
        Parser(text, 0).value()
    }

    fn peek(&mut self) -> Result<u8> {
        while self.0.get(self.1).is_some_and(|c| b" \t\r\n,:".contains(c)) {
            self.1 += 1;
        }
        self.0.get(self.1).copied().ok_or_else(|| "the JSON is cut off".into())
    }

    fn value(&mut self) -> Result<Json> {
        match self.peek()? {
            b'"' => Ok(Json::Text(self.string()?)),
            b'[' => {
                let mut items = vec![];
                self.1 += 1;
                while self.peek()? != b']' {
                    items.push(self.value()?);
                }
                self.1 += 1;
                Ok(Json::List(items))
            }
            b'{' => {
                let mut items = vec![];
                self.1 += 1;
                while self.peek()? != b'}' {
                    items.push((self.string()?, self.value()?));
                }
                self.1 += 1;
                Ok(Json::Object(items))
            }
            _ => {
                let rest = &self.0[self.1..];
                let length = rest.iter().position(|c| b" \t\r\n,:]}".contains(c)).unwrap_or(rest.len());
                self.1 += length;
                Ok(Json::Word(String::from_utf8(rest[..length].to_vec())?))
            }
        }
    }

    fn next(&mut self) -> Result<u8> {
        self.1 += 1;
        self.0.get(self.1 - 1).copied().ok_or_else(|| "a string of the JSON has no end".into())
    }

    fn unit(&mut self) -> Result<u16> {
        let digits = self.0.get(self.1..self.1 + 4).ok_or("a wrong escape in the JSON")?;
        self.1 += 4;
        Ok(u16::from_str_radix(std::str::from_utf8(digits)?, 16)?)
    }

    fn string(&mut self) -> Result<String> {
        if self.next()? != b'"' {
            return Err("the JSON has no name where one is needed".into());
        }
        let mut found = vec![];
        loop {
            match self.next()? {
                b'"' => return Ok(String::from_utf8(found)?),
                b'\\' => match self.next()? {
                    b'u' => {
                        let mut units = vec![self.unit()?];
                        if (0xD800..0xDC00).contains(&units[0]) && self.0.get(self.1..self.1 + 2) == Some(b"\\u") {
                            self.1 += 2;
                            units.push(self.unit()?);
                        }
                        found.extend(String::from_utf16(&units)?.bytes());
                    }
                    c => found.push(match c { b'b' => 8, b'f' => 12, b'n' => 10, b'r' => 13, b't' => 9, _ => c }),
                },
                c => found.push(c),
            }
        }
    }
}

impl Json {
    fn get(&self, key: &str) -> Result<&Json> {
        let Json::Object(items) = self else { return Err(format!("no object with `{key}`").into()) };
        let found = items.iter().find(|(name, _)| name == key).map(|(_, value)| value);
        found.ok_or_else(|| format!("`{key}` is missing").into())
    }

    fn text(&self, key: &str) -> Result<&str> {
        match self.get(key)? {
            Json::Text(text) => Ok(text),
            _ => Err(format!("`{key}` is not a text").into()),
        }
    }

    fn list(&self, key: &str) -> Result<&[Json]> {
        match self.get(key)? {
            Json::List(items) => Ok(items),
            _ => Err(format!("`{key}` is not a list").into()),
        }
    }

    fn items(&self) -> &[(String, Json)] {
        if let Json::Object(items) = self { items } else { &[] }
    }

    fn numbers(&self, key: &str) -> Result<Vec<i64>> {
        self.list(key)?.iter().map(|n| Ok(n.leaves()[0].parse()?)).collect()
    }

    fn leaves(&self) -> Vec<&str> {
        match self {
            Json::Word(word) | Json::Text(word) => vec![word],
            Json::List(items) => items.iter().flat_map(Json::leaves).collect(),
            Json::Object(_) => vec![],
        }
    }
}

fn quoted(text: &str) -> String {
    let escaped: String = text.chars().map(|c| if c == '"' || c == '\\' { format!("\\{c}") } else { c.into() }).collect();
    format!("\"{escaped}\"")
}

// ---------------------------------------------------------------- tensors by name

const KINDS: [(&str, &str, c_int, usize); 10] = [
    ("F32", "float32", 1, 4),
    ("F64", "float64", 11, 8),
    ("F16", "float16", 10, 2),
    ("BF16", "bfloat16", 16, 2),
    ("I64", "int64", 7, 8),
    ("I32", "int32", 6, 4),
    ("I16", "int16", 5, 2),
    ("I8", "int8", 3, 1),
    ("U8", "uint8", 2, 1),
    ("BOOL", "bool", 9, 1),
]; // in a safetensors file, in numpy, in ONNX, bytes

/// A tensor in memory of Rust; ONNX Runtime gets a copy.
#[derive(Clone)]
struct Tensor {
    kind: usize,
    shape: Vec<i64>,
    data: Vec<u8>,
}

type Tensors = BTreeMap<String, Tensor>;

fn kind_of(fits: impl Fn(&(&str, &str, c_int, usize)) -> bool) -> Result<usize> {
    KINDS.iter().position(fits).ok_or_else(|| "an element type that a safetensors file has no name for".into())
}

impl Tensor {
    fn to_runtime(&self, runtime: &Runtime) -> Result<Handle> {
        let mut value: Handle = null_mut();
        call!(runtime.api, 48, runtime.allocator => Handle, self.shape.as_ptr() => *const i64,
              self.shape.len() => usize, KINDS[self.kind].2 => c_int, &mut value => *mut Handle)?;
        let mut data: *mut u8 = null_mut();
        call!(runtime.api, 51, value => Handle, &mut data => *mut *mut u8)?;
        unsafe { std::ptr::copy_nonoverlapping(self.data.as_ptr(), data, self.data.len()) };
        Ok(value)
    }

    fn from_runtime(runtime: &Runtime, value: Handle) -> Result<Tensor> {
        let api = &runtime.api;
        let (mut info, mut element, mut rank, mut count): (Handle, c_int, usize, usize) = (null_mut(), 0, 0, 0);
        call!(api, 65, value => Handle, &mut info => *mut Handle)?;
        call!(api, 60, info => Handle, &mut element => *mut c_int)?;
        call!(api, 61, info => Handle, &mut rank => *mut usize)?;
        let mut shape = vec![0i64; rank];
        call!(api, 62, info => Handle, shape.as_mut_ptr() => *mut i64, rank => usize)?;
        call!(api, 64, info => Handle, &mut count => *mut usize)?;
        release!(api, 99, info);
        let kind = kind_of(|k| k.2 == element)?;
        let mut data: *mut u8 = null_mut();
        call!(api, 51, value => Handle, &mut data => *mut *mut u8)?;
        let size = count * KINDS[kind].3;
        let bytes = if size == 0 { vec![] } else { unsafe { std::slice::from_raw_parts(data, size).to_vec() } };
        Ok(Tensor { kind, shape, data: bytes })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn read_tensors(path: &Path) -> Result<Tensors> {
    let file = read(path)?;
    let damaged = || format!("{} is not a whole safetensors file", path.display());
    let length = u64::from_le_bytes(file.get(..8).ok_or_else(damaged)?.try_into()?) as usize;
    let header = Parser::parse(file.get(8..8usize.saturating_add(length)).ok_or_else(damaged)?)?;
    let body = &file[8 + length..];
    let mut found = Tensors::new();
    for (name, t) in header.items().iter().filter(|(name, _)| name != "__metadata__") {
        let kind = kind_of(|k| t.text("dtype").is_ok_and(|text| text == k.0))?;
        let (shape, range) = (t.numbers("shape")?, t.numbers("data_offsets")?);
        let data = body.get(range[0] as usize..range[1] as usize).ok_or_else(damaged)?.to_vec();
        if data.len() != shape.iter().product::<i64>() as usize * KINDS[kind].3 {
            return Err(damaged().into());
        }
        found.insert(name.clone(), Tensor { kind, shape, data });
    }
    Ok(found)
}

fn write_tensors(path: &Path, tensors: &Tensors) -> Result<()> {
    let (mut entries, mut body) = (vec![], vec![]);
    for (name, t) in tensors {
        let (first, kind) = (body.len(), KINDS[t.kind].0);
        body.extend(&t.data);
        let about = format!("{{\"dtype\":\"{kind}\",\"shape\":{:?},\"data_offsets\":[{first},{}]}}", t.shape, body.len());
        entries.push(format!("{}:{about}", quoted(name)));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    header.push_str(&" ".repeat((8 - header.len() % 8) % 8));
    let length = (header.len() as u64).to_le_bytes();
    Ok(fs::write(path, [&length[..], header.as_bytes(), &body].concat())?)
}

fn read_settings(manifest: &Json) -> Result<Tensors> {
    let mut found = Tensors::new();
    for (name, s) in manifest.get("settings")?.items() {
        let kind = kind_of(|k| s.text("dtype").is_ok_and(|text| text == k.1))?;
        let mut data: Vec<u8> = vec![];
        for word in s.get("default")?.leaves() {
            match KINDS[kind].1 {
                "float32" => data.extend(word.parse::<f32>()?.to_le_bytes()),
                "float64" => data.extend(word.parse::<f64>()?.to_le_bytes()),
                "int64" => data.extend(word.parse::<i64>()?.to_le_bytes()),
                "int32" => data.extend(word.parse::<i32>()?.to_le_bytes()),
                "bool" => data.push(u8::from(word == "true")),
                other => return Err(format!("a setting of element type {other}").into()),
            }
        }
        found.insert(name.clone(), Tensor { kind, shape: s.numbers("shape")?, data });
    }
    Ok(found)
}

// ---------------------------------------------------------------- graphs

struct Graph<'a> {
    about: &'a Json, // what the manifest says
    session: Handle,
    runtime: &'a Runtime,
}

impl<'a> Graph<'a> {
    fn open(runtime: &'a Runtime, folder: &Path, about: &'a Json) -> Result<Graph<'a>> {
        let (mut options, mut session): (Handle, Handle) = (null_mut(), null_mut());
        let path = folder.join(about.text("file")?);
        let name = CString::new(path.to_str().ok_or("a path that is not UTF-8")?)?;
        let api = &runtime.api;
        call!(api, 10, &mut options => *mut Handle)?; // CreateSessionOptions
        call!(api, 17, options => Handle)?; // DisableMemPattern: 1.17 and 1.18 reuse memory that is still read
        call!(api, 7, runtime.env => Handle, name.as_ptr() => *const c_char, options => Handle,
              &mut session => *mut Handle)?; // CreateSession
        release!(api, 100, options);
        Ok(Graph { about, session, runtime })
    }

    /// Run: new state goes to where `replaces` says, other outputs to `outputs`; return the loss.
    fn run(&self, batch: &Tensors, settings: &Tensors, state: &mut Tensors, outputs: &mut Tensors) -> Result<f32> {
        let (wanted, given) = (self.about.list("inputs")?, self.about.list("outputs")?);
        let mut values = vec![];
        for input in wanted {
            let name = input.text("name")?;
            let found = batch.get(name).or_else(|| settings.get(name)).or_else(|| state.get(name));
            values.push(found.ok_or_else(|| format!("no value for input {name}"))?.to_runtime(self.runtime)?);
        }
        let named = |list: &[Json]| -> Result<Vec<CString>> {
            list.iter().map(|item| Ok(CString::new(item.text("name")?)?)).collect()
        };
        let (inputs, results) = (named(wanted)?, named(given)?);
        let pointers = |names: &[CString]| -> Vec<*const c_char> { names.iter().map(|n| n.as_ptr()).collect() };
        let mut made: Vec<Handle> = vec![null_mut(); results.len()];
        let api = &self.runtime.api;
        let done = call!(api, 9, self.session => Handle, null::<c_void>() => *const c_void,
              pointers(&inputs).as_ptr() => *const *const c_char, values.as_ptr() => *const Handle,
              values.len() => usize, pointers(&results).as_ptr() => *const *const c_char,
              made.len() => usize, made.as_mut_ptr() => *mut Handle); // Run
        values.into_iter().for_each(|value| release!(api, 96, value));
        done?;
        let mut loss = 0.0;
        for (output, value) in given.iter().zip(made) {
            let tensor = Tensor::from_runtime(self.runtime, value)?;
            release!(api, 96, value);
            match output.text("role")? {
                "state" => state.insert(output.text("replaces")?.into(), tensor),
                role => {
                    if role == "loss" {
                        loss = f32::from_le_bytes(tensor.data[..4].try_into()?);
                    }
                    outputs.insert(output.text("name")?.into(), tensor)
                }
            };
        }
        Ok(loss)
    }
}

// ---------------------------------------------------------------- the inference model with its weights

fn put_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_field(to: &mut Vec<u8>, field: u64, data: &[u8]) {
    put_number(to, field << 3 | 2);
    put_number(to, data.len() as u64);
    to.extend(data);
}

fn take<'a>(message: &mut &'a [u8], size: usize) -> Result<&'a [u8]> {
    let data = message.get(..size).ok_or("the model is cut off")?;
    *message = &message[size..];
    Ok(data)
}

fn take_number(message: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Ok(number)
}

/// Take the first field off a protobuf message: its number, all of it, and its data.
fn take_field<'a>(message: &mut &'a [u8]) -> Result<(u64, &'a [u8], &'a [u8])> {
    let start = *message;
    let tag = take_number(message)?;
    let data = match tag & 7 {
        0 => take_number(message).map(|_| &start[..0])?,
        1 => take(message, 8)?,
        5 => take(message, 4)?,
        _ => {
            let size = take_number(message)? as usize;
            take(message, size)?
        }
    };
    Ok((tag >> 3, &start[..start.len() - message.len()], data))
}

fn exported(file: &[u8], about: &Json, state: &Tensors) -> Result<Vec<u8>> {
    let mut weights = vec![];
    for input in about.list("inputs")? {
        if input.text("role")? == "state" {
            weights.push(input.text("name")?);
        }
    }
    let is_weight = |mut value_info: &[u8]| -> Result<bool> {
        while !value_info.is_empty() {
            let (number, _, data) = take_field(&mut value_info)?;
            if number == 1 {
                return Ok(weights.iter().any(|name| name.as_bytes() == data)); // 1: its name
            }
        }
        Ok(false)
    };
    let (mut model, mut graph, mut rest) = (vec![], vec![], file);
    while !rest.is_empty() {
        let (number, whole, mut inside) = take_field(&mut rest)?;
        if number != 7 {
            model.extend(whole); // 7: the graph
            continue;
        }
        while !inside.is_empty() {
            let (number, whole, data) = take_field(&mut inside)?;
            if number != 11 || !is_weight(data)? {
                graph.extend(whole); // 11: an input
            }
        }
    }
    for name in &weights {
        let value = state.get(*name).ok_or_else(|| format!("no state {name}"))?;
        let mut tensor = vec![];
        for size in &value.shape {
            put_number(&mut tensor, 1 << 3);
            put_number(&mut tensor, *size as u64);
        }
        put_number(&mut tensor, 2 << 3);
        put_number(&mut tensor, KINDS[value.kind].2 as u64);
        put_field(&mut tensor, 8, name.as_bytes());
        put_field(&mut tensor, 9, &value.data);
        put_field(&mut graph, 5, &tensor); // 5: an initializer
    }
    put_field(&mut model, 7, &graph);
    Ok(model)
}

// ---------------------------------------------------------------- the loop

fn train() -> Result<()> {
    let words: Vec<PathBuf> = env::args().skip(1).map(PathBuf::from).collect();
    let [folder, data, out, ..] = &words[..] else {
        return Err("usage: train PROGRAM BATCHES.safetensors OUT [STATE.safetensors]".into());
    };
    let runtime = Runtime::new()?;
    let manifest = Parser::parse(&read(&folder.join("manifest.json"))?)?;
    let graphs = manifest.get("graphs")?;
    let settings = read_settings(&manifest)?;
    let stored = folder.join(manifest.get("state")?.text("file")?);
    let mut state = read_tensors(words.get(3).unwrap_or(&stored))?;
    let mut batches: BTreeMap<u64, Tensors> = BTreeMap::new();
    for (name, tensor) in read_tensors(data)? {
        let (number, input) = name.split_once('/').ok_or_else(|| format!("`{name}` is not <batch>/<input>"))?;
        batches.entry(number.parse()?).or_default().insert(input.into(), tensor);
    }

    let mut steps = vec![];
    for (role, graph) in graphs.items() {
        if role.split(':').next() == Some("step") {
            steps.push(Graph::open(&runtime, folder, graph)?);
        }
    }
    let mut outputs = Tensors::new();
    for batch in batches.values() {
        for step in &steps {
            println!("{:e}", step.run(batch, &settings, &mut state, &mut outputs)?);
        }
    }

    let last = batches.values().last().ok_or("there is no batch")?;
    let evaluate = Graph::open(&runtime, folder, graphs.get("evaluate")?)?;
    println!("{:e}", evaluate.run(last, &settings, &mut state, &mut outputs)?);
    outputs.clear();
    let infer = Graph::open(&runtime, folder, graphs.get("infer")?)?;
    infer.run(last, &settings, &mut state, &mut outputs)?;

    write_tensors(&out.join("outputs.safetensors"), &outputs)?;
    write_tensors(&out.join("state.safetensors"), &state)?;
    let file = read(&folder.join(infer.about.text("file")?))?;
    Ok(fs::write(out.join("model.onnx"), exported(&file, infer.about, &state)?)?)
}

fn main() {
    if let Err(error) = train() {
        eprintln!("error: {error}");
        process::exit(1);
    }
}
