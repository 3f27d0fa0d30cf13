//! The tables shared by all threads: each column is a list, and a row is an index into every column.

use std::collections::HashMap;

use serde::{Serialize, Serializer};

use crate::file_name::base_name;
use crate::names::NameId;
use crate::output::sampled_thread::mark;
use crate::output::strings::Strings;
use crate::profile::{Binary, FunctionId, Profile, SourceLine};
use crate::symbolize::{Origin, hex};

/// Indices into the list of categories, see [`super::meta`].
pub(super) const OTHER: u32 = 0;
const USER: u32 = 1;
const KERNEL: u32 = 2;
/// A resource that is a library.
const LIBRARY: u32 = 1;
/// For columns other than lists of nullable numbers.
const NONE: i64 = -1;

/// `profile.shared`.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct Shared {
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: ResourceTable,
    native_symbols: NativeSymbols,
    sources: Sources,
    #[serde(serialize_with = "texts")]
    string_array: Strings,
}

/// A tree: each row is a frame and the row of its caller.
#[derive(Serialize, Default)]
struct StackTable {
    frame: Vec<u32>,
    prefix: Vec<Option<u32>>,
    length: usize,
}

/// An address, or one of the functions inlined there.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    /// Relative to its library; -1 outside all libraries.
    address: Vec<i64>,
    /// 0 for the outermost function, which has a symbol.
    inline_depth: Vec<u32>,
    category: Vec<u32>,
    subcategory: Vec<u32>,
    func: Vec<u32>,
    native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
    length: usize,
}

/// A function in a source file.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    name: Vec<u32>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    resource: Vec<i64>,
    source: Vec<Option<u32>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
    length: usize,
}

/// Where functions come from: a library.
#[derive(Serialize, Default)]
struct ResourceTable {
    lib: Vec<Option<u32>>,
    name: Vec<u32>,
    host: Vec<Option<u32>>,
    r#type: Vec<u32>,
    length: usize,
}

/// Functions with a symbol. They tell the viewer what is inlined into what.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    lib_index: Vec<u32>,
    /// The lowest sampled address, because the profile does not contain the start of functions.
    address: Vec<u64>,
    name: Vec<u32>,
    function_size: Vec<Option<u64>>,
    length: usize,
}

/// Source files.
#[derive(Serialize, Default)]
struct Sources {
    id: Vec<Option<u32>>,
    filename: Vec<u32>,
    length: usize,
}

/// A file that was mapped; an entry of `libs`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lib {
    name: String,
    path: String,
    debug_name: String,
    debug_path: String,
    breakpad_id: String,
    code_id: Option<String>,
    arch: &'static str,
}

impl Lib {
    fn new(binary: &Binary) -> Self {
        let (name, path) = (base_name(&binary.path), binary.path.to_string_lossy().into_owned());
        Lib {
            debug_name: name.clone(),
            debug_path: path.clone(),
            name,
            path,
            breakpad_id: breakpad_id(&binary.build_id),
            code_id: (!binary.build_id.is_empty()).then(|| hex(&binary.build_id)),
            arch: "x86_64",
        }
    }
}

/// A build-id as symbol servers for crash reports write it: its first 16 bytes as a little-endian GUID,
/// then an age that is always 0 for ELF. Empty without a build-id.
fn breakpad_id(build_id: &[u8]) -> String {
    if build_id.is_empty() {
        return String::new();
    }
    let mut guid = [0; 16];
    let len = build_id.len().min(16);
    guid[..len].copy_from_slice(&build_id[..len]);
    guid[..4].reverse();
    guid[4..6].reverse();
    guid[6..8].reverse();
    hex(&guid).to_uppercase() + "0"
}

/// The tables under construction.
pub(super) struct Tables<'a> {
    profile: &'a Profile,
    pub(super) shared: Shared,
    pub(super) libs: Vec<Lib>,
    /// By binary: its library and its resource.
    resources: HashMap<u32, (Option<u32>, u32)>,
    functions: HashMap<(FunctionId, Option<NameId>), u32>,
    sources: HashMap<NameId, u32>,
    /// By outermost function.
    symbols: HashMap<FunctionId, u32>,
    /// The frame of the outermost function of each location; the inlined ones follow it.
    frames: Vec<u32>,
    mark_frames: HashMap<String, u32>,
    /// The row of a frame under a row.
    nodes: HashMap<(Option<u32>, u32), u32>,
}

impl<'a> Tables<'a> {
    /// All tables but that of stacks, which grows with the stacks requested.
    pub(super) fn new(profile: &'a Profile) -> Self {
        let mut tables = Tables {
            profile,
            shared: Shared::default(),
            libs: Vec::new(),
            resources: HashMap::new(),
            functions: HashMap::new(),
            sources: HashMap::new(),
            symbols: HashMap::new(),
            frames: Vec::with_capacity(profile.locations.len()),
            mark_frames: HashMap::new(),
            nodes: HashMap::new(),
        };
        for location in 0..profile.locations.len() {
            tables.location(location as u32);
        }
        tables
    }

    /// The index of a text.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        self.shared.string_array.index_of(text)
    }

    /// The row of a stack.
    pub(super) fn stack(&mut self, stack: u32) -> Option<u32> {
        let profile = self.profile;
        let stack = &profile.stacks[stack as usize];
        let mut row = mark(profile, stack).map(|mark| {
            let frame = self.mark_frame(mark);
            self.node(None, frame)
        });
        for frame in profile.frames_from_root(stack) {
            let first = self.frames[frame.location as usize];
            for depth in 0..profile.lines_of(frame.location).len() as u32 {
                row = Some(self.node(row, first + depth));
            }
        }
        row
    }

    fn node(&mut self, prefix: Option<u32>, frame: u32) -> u32 {
        let table = &mut self.shared.stack_table;
        *self.nodes.entry((prefix, frame)).or_insert_with(|| {
            table.frame.push(frame);
            table.prefix.push(prefix);
            table.length += 1;
            table.length as u32 - 1
        })
    }

    /// Adds the frames of a location, the outermost function first.
    fn location(&mut self, number: u32) {
        let profile = self.profile;
        let location = &profile.locations[number as usize];
        let lines = profile.lines_of(number);
        let resource = location.binary.map(|binary| self.resource(binary));
        let lib = resource.and_then(|(lib, _)| lib);
        self.frames.push(self.shared.frame_table.length as u32);
        let symbol = match (lib, lines.last()) {
            (Some(lib), Some(outermost)) => Some(self.symbol(lib, outermost.function, location.address)),
            _ => None,
        };
        for (depth, line) in lines.iter().rev().enumerate() {
            let func = self.function(line, resource.map(|(_, resource)| resource));
            let category = match location.binary {
                _ if profile.is_kernel(line.function) => KERNEL,
                None => OTHER,
                Some(_) => USER,
            };
            let address = lib.map_or(NONE, |_| location.address as i64);
            self.frame(func, category, address, depth as u32, symbol, line.line);
        }
    }

    fn frame(
        &mut self,
        func: u32,
        category: u32,
        address: i64,
        inline_depth: u32,
        native_symbol: Option<u32>,
        line: u32,
    ) {
        let table = &mut self.shared.frame_table;
        table.address.push(address);
        table.inline_depth.push(inline_depth);
        table.category.push(category);
        table.subcategory.push(0);
        table.func.push(func);
        table.native_symbol.push(native_symbol);
        table.inner_window_id.push(0);
        table.line.push((line != 0).then_some(line));
        table.column.push(None);
        table.length += 1;
    }

    fn mark_frame(&mut self, mark: String) -> u32 {
        if let Some(&frame) = self.mark_frames.get(&mark) {
            return frame;
        }
        let name = self.text(&mark);
        let func = self.push_function(name, None, None);
        let frame = self.shared.frame_table.length as u32;
        self.frame(func, OTHER, NONE, 0, None, 0);
        self.mark_frames.insert(mark, frame);
        frame
    }

    fn function(&mut self, line: &SourceLine, resource: Option<u32>) -> u32 {
        if let Some(&func) = self.functions.get(&(line.function, line.file)) {
            return func;
        }
        let name = self.text(self.profile.function_name(line.function));
        let source = line.file.map(|file| self.source(file));
        let func = self.push_function(name, resource, source);
        self.functions.insert((line.function, line.file), func);
        func
    }

    fn push_function(&mut self, name: u32, resource: Option<u32>, source: Option<u32>) -> u32 {
        let table = &mut self.shared.func_table;
        table.name.push(name);
        table.is_js.push(false);
        table.relevant_for_js.push(false);
        table.resource.push(resource.map_or(NONE, i64::from));
        table.source.push(source);
        table.line_number.push(None);
        table.column_number.push(None);
        table.length += 1;
        table.length as u32 - 1
    }

    fn source(&mut self, file: NameId) -> u32 {
        if let Some(&source) = self.sources.get(&file) {
            return source;
        }
        let name = self.text(self.profile.names.get(file));
        let table = &mut self.shared.sources;
        table.id.push(None);
        table.filename.push(name);
        table.length += 1;
        let source = table.length as u32 - 1;
        self.sources.insert(file, source);
        source
    }

    /// The symbol that contains an address of a library.
    fn symbol(&mut self, lib: u32, function: FunctionId, address: u64) -> u32 {
        if let Some(&symbol) = self.symbols.get(&function) {
            let lowest = &mut self.shared.native_symbols.address[symbol as usize];
            *lowest = address.min(*lowest);
            return symbol;
        }
        let name = self.text(self.profile.function_name(function));
        let table = &mut self.shared.native_symbols;
        table.lib_index.push(lib);
        table.address.push(address);
        table.name.push(name);
        table.function_size.push(None);
        table.length += 1;
        let symbol = table.length as u32 - 1;
        self.symbols.insert(function, symbol);
        symbol
    }

    /// The library and the resource of a binary. Generated code is a resource without a library: its
    /// addresses are those of one process.
    fn resource(&mut self, binary: u32) -> (Option<u32>, u32) {
        if let Some(&known) = self.resources.get(&binary) {
            return known;
        }
        let file = &self.profile.binaries[binary as usize];
        let name = self.text(&base_name(&file.path));
        let lib = (file.origin != Some(Origin::PerfMap)).then(|| {
            self.libs.push(Lib::new(file));
            self.libs.len() as u32 - 1
        });
        let table = &mut self.shared.resource_table;
        table.lib.push(lib);
        table.name.push(name);
        table.host.push(None);
        table.r#type.push(LIBRARY);
        table.length += 1;
        let resource = table.length as u32 - 1;
        self.resources.insert(binary, (lib, resource));
        (lib, resource)
    }
}

fn texts<S: Serializer>(strings: &Strings, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(strings.iter())
}

#[cfg(test)]
mod tests {
    use super::breakpad_id;

    #[test]
    fn build_ids_for_symbol_servers() {
        let id: Vec<u8> = (1..=20).collect();
        assert_eq!(breakpad_id(&id), "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(breakpad_id(&[0xab]), "000000AB0000000000000000000000000");
        assert_eq!(breakpad_id(&[]), "");
    }
}
