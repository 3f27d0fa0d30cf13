//! The loaded objects: found outside the handler, published to it as immutable snapshots, told to the reader.
//!
//! Objects present at the start are never unloaded, so their sections are used in place. What is loaded later may
//! go away: its unwind sections are copied while the loader's lock holds it, and no handler ever reads memory
//! that `dlclose` may unmap. A snapshot that a handler has pinned is freed later.
//!
//! The loader's lock is never taken under the lock here: a constructor inside `dlopen` may start a thread.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;

use handler::generated::Run;
use handler::interpreter::regions::Region;
use handler::slot;
use handler::snapshot::{self, Snapshot};
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

/// Rules that any walk has met, for all threads.
static CACHE: RuleCache = RuleCache::new();

/// A part of an object as the loader mapped it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) file_offset: u64,
    pub(crate) flags: u32,
}

/// One object from its load to its unload.
pub(crate) struct Object {
    pub(crate) id: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bias: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) build_id: Vec<u8>,
    pub(crate) segments: Vec<Segment>,
    /// The interpreter in it.
    pub(crate) python: Option<python::Found>,
    module: Module<'static>,
    /// What `module` refers to, if it is not in place.
    _sections: sections::Kept,
    /// The object before it had a table, if `module` refers to what that one keeps.
    _before: Option<Arc<Object>>,
}

impl Object {
    /// True if `image` at `path` is this very object.
    fn is(&self, image: &ElfImage<'_>, path: &[u8]) -> bool {
        self.start == image.start
            && self.end == image.end
            && self.bias == image.bias
            && self.build_id == image.build_id.unwrap_or(&[])
            && self.path == path
    }
}

/// A published snapshot and what it refers to.
#[repr(C)]
struct Published {
    /// First, because the handler's pointer is to this field.
    snapshot: Snapshot,
    list: Box<[Module<'static>]>,
    regions: Box<[Region]>,
    objects: Vec<Arc<Object>>,
    /// What the snapshot's generated code is in.
    _generated: Option<Arc<generated::Published>>,
}

struct Registry {
    objects: Vec<Arc<Object>>,
    /// With unwinders of their own, by address.
    regions: Vec<Region>,
    /// None where there never was any.
    generated: Option<Code>,
    retired: Vec<*mut Published>,
    /// The loader's count of changes that `objects` reflects.
    changes: u64,
    next_id: u32,
    generation: u32,
}

struct Guarded {
    lock: Lock,
    registry: UnsafeCell<Registry>,
}

// SAFETY: the registry is touched only while the lock is held.
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

/// Held while the loader's list is read without its lock.
static LOOKING: Lock = Lock::new();

/// The lock that a fork must hold, so that the child finds the registry whole.
pub(crate) fn lock() -> &'static Lock {
    &REGISTRY.lock
}

/// The rules that all walks share.
pub(crate) fn cache() -> &'static RuleCache {
    &CACHE
}

/// Runs `body` on the registry.
fn with_registry<R>(body: impl FnOnce(&mut Registry) -> R) -> R {
    let _held = REGISTRY.lock.hold();
    // SAFETY: the lock is held, and no body calls back into this function.
    body(unsafe { &mut *REGISTRY.registry.get() })
}

/// What one visit of the loader's list found.
struct Seen {
    /// The loader's count of changes.
    changes: u64,
    /// Objects that were known before.
    known: Vec<Arc<Object>>,
    /// Objects that were not.
    new: Vec<Object>,
}

/// Where the objects of a visit come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The program and what it was linked to: never unloaded.
    Start,
    /// Anything: may be unloaded.
    Later,
    /// The same, read without the loader's lock while other threads may change what is read.
    Attached,
}

/// Who is told of loads and unloads.
pub(crate) trait Listener {
    fn loaded(&mut self, object: &Object);
    fn unloaded(&mut self, object: &Object);
}

/// Compares the loader's list with the published one, and publishes and tells the difference.
pub(crate) fn rescan(stage: Stage, names: &Names, listener: &mut dyn Listener) {
    let _masked = Masked::new();
    // Without the loader's count of changes nobody knows whose list is the later one: one look at a time.
    let _alone = (stage == Stage::Attached).then(|| LOOKING.hold());
    let known = with_registry(|registry| registry.objects.clone());
    let seen = visit(stage, names, known);
    with_registry(|registry| {
        // Another thread may have seen the same list, or a later one, and published it first.
        if stage != Stage::Later || seen.changes > registry.changes {
            registry.merge(seen, listener);
        }
    });
}

/// Tells `listener` of all objects, for a new region.
pub(crate) fn tell_all(listener: &mut dyn Listener) {
    with_registry(|registry| registry.objects.iter().for_each(|object| listener.loaded(object)));
}

/// Visits the loader's list and copies what is new.
fn visit(stage: Stage, names: &Names, known: Vec<Arc<Object>>) -> Seen {
    let vdso = crate::auxiliary::vdso();
    let mut seen = Seen { changes: 0, known: Vec::new(), new: Vec::new() };
    let mut first = true;
    let late = names.tables.as_deref().filter(|_| !known.is_empty()).and_then(sections::if_changed);
    symbols::visit_objects(&mut |info: &ObjectInfo| {
        seen.changes = info.changes();
        // SAFETY: the loader's lock is held during the visit, so the object stays loaded.
        let (headers, name) = unsafe { (info.program_headers(), info.name().to_bytes()) };
        let is_program = core::mem::take(&mut first);
        let path = |image: &ElfImage<'_>| names.path_of(name, is_program, vdso != 0 && image.start == vdso);
        let is_known = |image: &ElfImage<'_>| known.iter().find(|object| object.is(image, &path(image)));
        let tables = names.tables.as_deref();
        if stage == Stage::Attached {
            let Some(copied) = CopiedImage::new(info.bias, headers) else { return true };
            let Some(image) = copied.image() else { return true };
            if let Some(object) = is_known(&image) {
                seen.known.push(object.clone());
                return true;
            }
            let copied = copied.with_sections();
            if let Some(image) = copied.image() {
                let path = path(&image);
                // SAFETY: nobody vouches for it, but a program never goes away, and its interpreter's library does not
                // either: CPython cannot be unloaded while a thread runs it.
                let python = unsafe { names.interpreter(is_program, &path, info, &image) };
                seen.new.push(Object { python, ..describe(&image, headers, path, tables) });
            }
            return true;
        }
        // SAFETY: as above, for as long as the visit; what outlives it is copied below.
        let Some(image) = (unsafe { ElfImage::<'static>::from_headers(info.bias, headers) }) else {
            return true;
        };
        if let Some(object) = is_known(&image) {
            seen.known.push(with_table(object, late).unwrap_or_else(|| object.clone()));
            return true;
        }
        // SAFETY: as above.
        let symbols = unsafe { Symbols::of_object(info) }.inspect(signal_stacks::look_into);
        // SAFETY: as above.
        let python = symbols.and_then(|symbols| unsafe { names.interpreter_by(&symbols, &image) });
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

/// Makes an object of `image`, which stays where it is; its id comes when it is merged.
fn describe_in_place(
    image: &ElfImage<'static>,
    headers: &[ProgramHeader],
    path: Vec<u8>,
    tables: Option<&[u8]>,
) -> Object {
    let mut module = image.module();
    let sections = sections::keep(&mut module, image, &path, true, tables);
    object(image, headers, path, module, sections)
}

/// Makes an object of `image`, of which nothing is used afterwards; its id comes when it is merged.
fn describe(image: &ElfImage<'_>, headers: &[ProgramHeader], path: Vec<u8>, tables: Option<&[u8]>) -> Object {
    let mut module = bare(image);
    let sections = sections::keep(&mut module, image, &path, false, tables);
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
    sections: sections::Kept,
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
        _sections: sections,
        _before: None,
    }
}

/// `object` with its table, if it has none and there is one by now.
fn with_table(object: &Arc<Object>, tables: Option<&[u8]>) -> Option<Arc<Object>> {
    if object.module.table.is_some() || object.build_id.is_empty() {
        return None;
    }
    let mut module = object.module;
    let sections = sections::late_table(&mut module, tables?, &object.build_id)?;
    Some(Arc::new(Object {
        path: object.path.clone(),
        build_id: object.build_id.clone(),
        segments: object.segments.clone(),
        module,
        _sections: sections,
        _before: Some(object.clone()),
        ..**object
    }))
}

/// Publishes an unwinder's region, which gets a number from 1 on; none if a part of it has one already.
pub(crate) fn add_region(region: Region) -> Option<u32> {
    with_registry(|registry| registry.add_region(region))
}

/// Takes a region out of what is published; false if there is none of that number. Handlers may still be using it.
pub(crate) fn remove_region(id: u32) -> bool {
    with_registry(|registry| registry.remove_region(id))
}

/// True while a handler may be using a region that was removed.
pub(crate) fn is_region_in_use(id: u32) -> bool {
    with_registry(|registry| {
        registry.sweep();
        // SAFETY: a retired snapshot is freed by `sweep` alone, under the lock that is held.
        let holds =
            |retired: &*mut Published| unsafe { &**retired }.regions.iter().any(|region| region.id == id);
        registry.retired.iter().any(holds)
    })
}

/// Publishes generated code after `change`, which says whether it has changed anything.
pub(crate) fn change_generated(change: impl FnOnce(&mut Code) -> bool) {
    with_registry(|registry| {
        // Nothing of generated code is remembered: the generation stays.
        if change(registry.generated.get_or_insert_default()) {
            registry.publish();
            registry.sweep();
        }
    });
}

/// How many regions there are.
pub(crate) fn regions() -> usize {
    with_registry(|registry| registry.regions.len())
}

impl Registry {
    fn add_region(&mut self, region: Region) -> Option<u32> {
        let place = self.regions.partition_point(|other| other.start < region.start);
        let behind = self.regions.get(place).is_none_or(|other| region.end <= other.start);
        let before = place.checked_sub(1).and_then(|before| self.regions.get(before));
        if !behind || before.is_some_and(|other| region.start < other.end) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let bounds = (region.start, region.end);
        self.regions.insert(place, Region { id, ..region });
        self.publish_regions(bounds);
        Some(id)
    }

    fn remove_region(&mut self, id: u32) -> bool {
        let Some(place) = self.regions.iter().position(|region| region.id == id) else { return false };
        let region = self.regions.remove(place);
        self.publish_regions((region.start, region.end));
        true
    }

    /// Publishes after a change of regions inside these bounds.
    fn publish_regions(&mut self, (start, end): (u64, u64)) {
        // What is remembered of code that is now in a hole, or no longer in one, means nothing any more; nor, behind the last
        // region, do the frames that walks before had among their own.
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

    /// Takes over what a visit saw.
    fn merge(&mut self, seen: Seen, listener: &mut dyn Listener) {
        let gone: Vec<_> = self
            .objects
            .iter()
            .filter(|object| !seen.known.iter().any(|known| known.id == object.id))
            .cloned()
            .collect();
        let is_old = |known: &Arc<Object>| self.objects.iter().any(|object| Arc::ptr_eq(known, object));
        let same = seen.known.iter().all(is_old);
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

    /// Publishes the current objects and retires the snapshot before.
    fn publish(&mut self) {
        let mut list: Vec<Module<'static>> = self.objects.iter().map(|object| object.module).collect();
        list.retain(|module| module.start < module.end);
        Modules::sort(&mut list);
        // Two objects cannot overlap; if the loader's list says so all the same, the first counts.
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
        // SAFETY: as above.
        let generated: &'static [Run] = unsafe { &*core::ptr::from_ref(generated) };
        let Some(modules) = Modules::new(shared, self.generation) else { return };
        let python = self.objects.iter().find_map(|object| object.python?.known());
        let snapshot = Snapshot { modules, python, regions: regions_shared, generated };
        let published =
            Published { snapshot, list, regions, objects: self.objects.clone(), _generated: code };
        let published = Box::into_raw(Box::new(published));
        let before = snapshot::replace(published.cast());
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
