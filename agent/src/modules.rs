//! The loaded objects: discovered outside the handler, published to it as immutable snapshots, reported to the reader.
//!
//! Objects present at the start are never unloaded, so their sections are used in place. Objects loaded later may be
//! unloaded: their unwind sections are copied under the loader's lock, and no handler ever reads memory that `dlclose`
//! may unmap. A snapshot that a handler has pinned is freed later.
//!
//! The loader's lock must never be acquired under the lock here: a constructor inside `dlopen` may start a thread.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use handler::generated::Run;
use handler::program;
use handler::slot;
use handler::snapshot::{self, Snapshot};
use interpreter::regions::Region;
use unwind::elf_image::{ElfImage, ProgramHeader};
use unwind::{Module, Modules, RuleCache};

use crate::copied_image::CopiedImage;
use crate::dynamic::Symbols;
use crate::generated::{self, Code};
use crate::holes;
use crate::lock::{Lock, Masked};
use crate::names::Names;
use crate::object_info::ObjectInfo;
use crate::python;
use crate::sections;
use crate::signal_stacks;
use crate::symbols;

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
const PF_R: u32 = 4;

/// The rule cache, shared by all threads.
static CACHE: RuleCache = RuleCache::new();

/// A segment of an object, as the loader mapped it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) file_offset: u64,
    pub(crate) flags: u32,
}

/// One object, from its load to its unload.
pub(crate) struct Object {
    pub(crate) id: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bias: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) build_id: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
    /// The interpreter that it contains.
    pub(crate) python: Option<python::Found>,
    module: Module<'static>,
    /// Memory that `module` refers to, where its sections are not used in place.
    sections: sections::SectionMemory,
    /// The object as it was before it got a table, if `module` refers to memory of that.
    _before: Option<Arc<Object>>,
}

impl Object {
    /// Whether `image` is the same object; `path` is asked for if all else is equal.
    fn is(&self, image: &ElfImage<'_>, path: impl FnOnce() -> Vec<u8>) -> bool {
        self.start == image.start
            && self.end == image.end
            && self.bias == image.bias
            && self.build_id == image.build_id.unwrap_or(&[])
            && self.path == path()
    }
}

/// A published snapshot and what it refers to.
#[repr(C)]
struct Published {
    /// Must be the first field: the handler's pointer points to it.
    snapshot: Snapshot,
    list: Box<[Module<'static>]>,
    regions: Box<[Region]>,
    objects: Vec<Arc<Object>>,
    /// Keeps the generated code alive that the snapshot refers to.
    _generated: Option<Arc<generated::Published>>,
}

struct Registry {
    objects: Vec<Arc<Object>>,
    /// Registered regions, by address.
    regions: Vec<Region>,
    /// `None` until generated code is registered for the first time.
    generated: Option<Code>,
    retired: Vec<*mut Published>,
    /// The loader's change count that `objects` reflects.
    changes: u64,
    next_id: u32,
    generation: u32,
}

struct Guarded {
    lock: Lock,
    registry: UnsafeCell<Registry>,
}

// SAFETY: the registry is accessed only while the lock is held.
unsafe impl Sync for Guarded {}

static REGISTRY: Guarded = Guarded {
    lock: Lock::new(),
    registry: UnsafeCell::new(Registry {
        objects: Vec::new(),
        regions: Vec::new(),
        generated: None,
        retired: Vec::new(),
        changes: 0,
        next_id: 1,
        generation: 1,
    }),
};

/// Held while the loader's list is read without the loader's lock.
static LOOKING: Lock = Lock::new();

/// The lock, which a fork must hold so that the child finds the registry consistent.
pub(crate) fn lock() -> &'static Lock {
    &REGISTRY.lock
}

/// The rule cache, shared by all walks.
pub(crate) fn cache() -> &'static RuleCache {
    &CACHE
}

/// Runs `body` with the registry locked.
fn with_registry<R>(body: impl FnOnce(&mut Registry) -> R) -> R {
    let _held = REGISTRY.lock.hold();
    // SAFETY: the lock is held, and no body calls back into this function.
    body(unsafe { &mut *REGISTRY.registry.get() })
}

/// Result of one visit of the loader's list.
struct Seen {
    /// The loader's change count.
    changes: u64,
    /// Objects known before.
    known: Vec<Arc<Object>>,
    /// New objects.
    new: Vec<Object>,
}

/// When objects are visited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// At the start: the program and its dependencies, which are never unloaded.
    Start,
    /// Later: objects may be unloaded.
    Later,
    /// In an attached process: objects are read without the loader's lock and may change meanwhile.
    Attached,
}

/// Receives loads and unloads.
pub(crate) trait Listener {
    fn loaded(&mut self, object: &Object);
    fn unloaded(&mut self, object: &Object);
}

/// Compares the loader's list with the published one, and publishes and reports the differences.
pub(crate) fn rescan(stage: Stage, names: &Names, listener: &mut dyn Listener) {
    let _masked = Masked::new();
    // Without the loader's change count, two concurrent visits could not be ordered: make one at a time.
    let _alone = (stage == Stage::Attached).then(|| LOOKING.hold());
    let known = with_registry(|registry| registry.objects.clone());
    let seen = visit(stage, names, known);
    with_registry(|registry| {
        // Another thread may have published the same list or a later one first.
        if stage != Stage::Later || seen.changes > registry.changes {
            registry.merge(seen, listener);
        }
    });
}

/// Reports all objects to `listener`, for a new region.
pub(crate) fn tell_all(listener: &mut dyn Listener) {
    with_registry(|registry| registry.objects.iter().for_each(|object| listener.loaded(object)));
}

/// Objects in the order in which the loader lists them, as far as it has added and removed some only.
struct Known<'a> {
    objects: &'a [Arc<Object>],
    /// Index of the object behind the last one found.
    next: usize,
}

impl<'a> Known<'a> {
    /// The object for which `is_it` holds: mostly the next one, as a visit would otherwise compare each object with all others.
    fn find(&mut self, is_it: impl Fn(&Object) -> bool) -> Option<&'a Arc<Object>> {
        let behind = self.objects.get(self.next..).unwrap_or(&[]).iter();
        let at = behind.chain(self.objects).position(|object| is_it(object))?;
        let at = (self.next + at) % self.objects.len();
        self.next = at + 1;
        self.objects.get(at)
    }
}

/// Visits the loader's list and copies what is new.
fn visit(stage: Stage, names: &Names, known: Vec<Arc<Object>>) -> Seen {
    let vdso = crate::auxiliary::vdso();
    let mut seen = Seen { changes: 0, known: Vec::new(), new: Vec::new() };
    let mut first = true;
    let mut known = Known { objects: &known, next: 0 };
    let looks_for_tables =
        !known.objects.is_empty() && names.tables.as_deref().is_some_and(sections::have_changed);
    symbols::visit_objects(&mut |info: &ObjectInfo| {
        seen.changes = info.changes();
        // SAFETY: the loader's lock is held during the visit, so the object stays loaded.
        let (headers, name) = unsafe { (info.program_headers(), info.name().to_bytes()) };
        let is_program = core::mem::take(&mut first);
        let path = |image: &ElfImage<'_>| {
            names.path_of(name, image.start, is_program, vdso != 0 && image.start == vdso)
        };
        let mut find_known = |image: &ElfImage<'_>| known.find(|object| object.is(image, || path(image)));
        let tables = names.tables.as_deref();
        let thread_locals = info.thread_locals(is_program, headers);
        if is_program && name.is_empty() {
            note_program(info.bias, headers);
        }
        if stage == Stage::Attached {
            let Some(copied) = CopiedImage::new(info.bias, headers) else { return true };
            let Some(image) = copied.image() else { return true };
            if let Some(object) = find_known(&image) {
                seen.known.push(object.clone());
                return true;
            }
            let copied = copied.with_sections();
            if let Some(image) = copied.image() {
                let path = path(&image);
                // SAFETY: no lock is held, but a program is never unloaded, and neither is its interpreter's library:
                // CPython cannot be unloaded while a thread runs it.
                let python = unsafe { names.interpreter(is_program, &path, info, &image, thread_locals) };
                seen.new.push(Object { python, ..describe(&image, headers, path, tables) });
            }
            return true;
        }
        // SAFETY: the loader's lock keeps the object loaded during the visit; what outlives the visit is copied below.
        let Some(image) = (unsafe { ElfImage::<'static>::from_headers(info.bias, headers) }) else {
            return true;
        };
        if let Some(object) = find_known(&image) {
            let late = if looks_for_tables { with_table(object) } else { None };
            seen.known.push(late.unwrap_or_else(|| object.clone()));
            return true;
        }
        // SAFETY: the loader's lock keeps the object loaded during the visit.
        let symbols = unsafe { Symbols::of_object(info) }.inspect(signal_stacks::look_into);
        // SAFETY: the loader's lock keeps the object loaded during the visit.
        let python =
            symbols.and_then(|symbols| unsafe { names.interpreter_by(&symbols, &image, thread_locals) });
        let object = if stage == Stage::Start {
            describe_in_place(&image, headers, path(&image), tables)
        } else {
            describe(&image, headers, path(&image), tables)
        };
        seen.new.push(Object { python, ..object });
        true
    });
    seen
}

/// Tells the handler where the program's own code is: its largest segment.
fn note_program(bias: u64, headers: &[ProgramHeader]) {
    const CODE: u32 = PF_R | PF_X;
    let code = headers.iter().filter(|header| header.kind == PT_LOAD && header.flags & CODE == CODE);
    if let Some(code) = code.max_by_key(|header| header.file_size) {
        let low = bias.wrapping_add(code.address);
        program::note(low, low.saturating_add(code.file_size));
    }
}

/// Describes an object that stays loaded. It gets its id when it is merged.
fn describe_in_place(
    image: &ElfImage<'static>,
    headers: &[ProgramHeader],
    path: Vec<u8>,
    tables: Option<&[u8]>,
) -> Object {
    let mut module = image.module();
    let sections = sections::keep(&mut module, image, headers, &path, true, tables);
    object(image, headers, path, module, sections)
}

/// Describes an object of which nothing is used in place. It gets its id when it is merged.
fn describe(image: &ElfImage<'_>, headers: &[ProgramHeader], path: Vec<u8>, tables: Option<&[u8]>) -> Object {
    let mut module = bare(image);
    let sections = sections::keep(&mut module, image, headers, &path, false, tables);
    object(image, headers, path, module, sections)
}

/// The module of `image` without its sections.
fn bare(image: &ElfImage<'_>) -> Module<'static> {
    Module {
        start: image.text_start,
        end: image.text_end,
        bias: image.bias,
        entry: image.entry,
        ..Module::default()
    }
}

fn object(
    image: &ElfImage<'_>,
    headers: &[ProgramHeader],
    path: Vec<u8>,
    module: Module<'static>,
    sections: sections::SectionMemory,
) -> Object {
    let segments = headers
        .iter()
        .filter(|header| header.kind == PT_LOAD)
        .map(|header| Segment {
            address: image.bias.wrapping_add(header.address),
            bytes: header.memory_size,
            file_offset: header.offset,
            flags: header.flags,
        })
        .collect();
    Object {
        id: 0,
        start: image.start,
        end: image.end,
        bias: image.bias,
        path,
        build_id: image.build_id.unwrap_or(&[]).to_vec(),
        segments,
        python: None,
        module,
        sections,
        _before: None,
    }
}

/// `object` with the table of a file, if it had none and there is one now.
fn with_table(object: &Arc<Object>) -> Option<Arc<Object>> {
    let mut module = object.module;
    let sections = object.sections.late_table(&mut module)?;
    Some(Arc::new(Object {
        path: object.path.clone(),
        build_id: object.build_id.clone(),
        segments: object.segments.clone(),
        module,
        sections,
        _before: Some(object.clone()),
        ..**object
    }))
}

/// Publishes a region. Returns its number, from 1 on; `None` if it overlaps another one.
pub(crate) fn add_region(region: Region) -> Option<u32> {
    with_registry(|registry| registry.add_region(region))
}

/// Unpublishes a region; false if there is none with that number. Handlers may still be using it.
pub(crate) fn remove_region(id: u32) -> bool {
    with_registry(|registry| registry.remove_region(id))
}

/// Whether a handler may still be using a region that was removed.
pub(crate) fn is_region_in_use(id: u32) -> bool {
    with_registry(|registry| {
        registry.sweep();
        // SAFETY: only `sweep` frees retired snapshots, and it needs the lock that is held here.
        let holds =
            |retired: &*mut Published| unsafe { &**retired }.regions.iter().any(|region| region.id == id);
        registry.retired.iter().any(holds)
    })
}

/// Publishes generated code after `change`, which returns whether it has changed anything.
pub(crate) fn change_generated(change: impl FnOnce(&mut Code) -> bool) {
    with_registry(|registry| {
        // Rules of generated code are not cached, so the generation need not change.
        if change(registry.generated.get_or_insert_default()) {
            registry.publish();
            registry.sweep();
        }
    });
}

/// Number of regions.
pub(crate) fn regions() -> usize {
    with_registry(|registry| registry.regions.len())
}

impl Registry {
    fn add_region(&mut self, region: Region) -> Option<u32> {
        let index = self.regions.partition_point(|other| other.start < region.start);
        let behind = self.regions.get(index).is_none_or(|other| region.end <= other.start);
        let before = index.checked_sub(1).and_then(|before| self.regions.get(before));
        if !behind || before.is_some_and(|other| region.start < other.end) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let bounds = (region.start, region.end);
        self.regions.insert(index, Region { id, ..region });
        self.publish_regions(bounds);
        Some(id)
    }

    fn remove_region(&mut self, id: u32) -> bool {
        let Some(index) = self.regions.iter().position(|region| region.id == id) else { return false };
        let region = self.regions.remove(index);
        self.publish_regions((region.start, region.end));
        true
    }

    /// Publishes after a change of regions within these bounds.
    fn publish_regions(&mut self, (start, end): (u64, u64)) {
        // Cached rules for code that is now in a hole, or no longer in one, are invalid. So are, once the last region is
        // gone, the region frames in stack caches.
        let in_module =
            self.objects.iter().any(|object| object.module.start < end && start < object.module.end);
        if in_module || self.regions.is_empty() {
            self.generation = self.generation.wrapping_add(1);
        }
        self.publish();
        if in_module {
            CACHE.clear();
        }
        self.sweep();
    }

    /// Merges the result of a visit.
    fn merge(&mut self, seen: Seen, listener: &mut dyn Listener) {
        let mut known = Known { objects: &seen.known, next: 0 };
        let is_gone = |object: &&Arc<Object>| known.find(|known| known.id == object.id).is_none();
        let gone: Vec<_> = self.objects.iter().filter(is_gone).cloned().collect();
        let same = self.objects.iter().zip(&seen.known).all(|(old, known)| Arc::ptr_eq(old, known));
        self.changes = seen.changes;
        if gone.is_empty() && seen.new.is_empty() && same {
            return self.sweep();
        }
        self.objects = seen.known;
        for mut object in seen.new {
            object.id = self.next_id;
            self.next_id += 1;
            listener.loaded(&object);
            self.objects.push(Arc::new(object));
        }
        if !gone.is_empty() {
            self.generation = self.generation.wrapping_add(1);
        }
        self.publish();
        if !gone.is_empty() {
            CACHE.clear();
        }
        gone.iter().for_each(|object| listener.unloaded(object));
        self.sweep();
    }

    /// Publishes the current objects and retires the previous snapshot.
    fn publish(&mut self) {
        let mut list: Vec<Module<'static>> = self.objects.iter().map(|object| object.module).collect();
        list.retain(|module| module.start < module.end);
        Modules::sort(&mut list);
        // Objects cannot overlap; should the loader's list say so, the first one wins.
        let mut end = 0;
        list.retain(|module| {
            let fits = module.start >= end;
            end = end.max(module.end);
            fits
        });
        let mut regions = self.regions.clone().into_boxed_slice();
        let list = holes::cut(list, &mut regions).into_boxed_slice();
        // SAFETY: the lists live in the same `Published`, which is freed as a whole.
        let (shared, regions_shared): (&'static [Module<'static>], &'static [Region]) =
            unsafe { (&*core::ptr::from_ref(&*list), &*core::ptr::from_ref(&*regions)) };
        let code = self.generated.as_ref().map(|code| code.published().clone());
        let generated = code.as_ref().map_or(&[][..], |code| code.list());
        // SAFETY: it lives in the same `Published`, which is freed as a whole.
        let generated: &'static [Run] = unsafe { &*core::ptr::from_ref(generated) };
        let Some(modules) = Modules::new(shared, self.generation) else { return };
        let python = self.objects.iter().find_map(|object| object.python?.known());
        let snapshot = Snapshot::new(modules, python, regions_shared, generated);
        let published =
            Published { snapshot, list, regions, objects: self.objects.clone(), _generated: code };
        let published = Box::into_raw(Box::new(published));
        // SAFETY: `sweep` frees it once it is replaced and pinned by nobody; `self` is borrowed by one at a time.
        let before = unsafe { snapshot::replace(published.cast()) };
        if !before.is_null() {
            self.retired.push(before.cast());
        }
    }

    /// Frees retired snapshots that no handler uses any more.
    fn sweep(&mut self) {
        self.retired.retain(|retired| {
            let pinned = slot::is_pinned(retired.cast());
            if !pinned {
                // SAFETY: made by `Box::into_raw` in `publish`; no longer published, and pinned by nobody.
                let published = unsafe { Box::from_raw(*retired) };
                debug_assert!(published.list.len() <= published.objects.len() + published.regions.len());
            }
            pinned
        });
    }
}
