//! The conformance suite: what every implementation of `Workspace` must do, whatever holds its files.
//!
//! An implementation brings a [`Subject`] and calls `workspace_conformance!(make)`. The suite arranges and inspects
//! files behind the implementation's back through `root`, and everything it expects is in the trait's documentation.

mod change;
mod changes;
mod confinement;
mod reading;
mod searching;
mod writing;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LocalWorkspace, Workspace, WorkspacePath};

/// An implementation under test and the real folder that its files live in.
pub struct Subject {
    /// The implementation.
    pub workspace: Arc<dyn Workspace>,
    /// The folder; its parent holds things that must stay out of reach.
    pub root: PathBuf,
    /// Removed at the end.
    pub keep: tempfile::TempDir,
}

impl Subject {
    /// Writes a file behind the implementation's back, with its folders.
    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, content).expect("written");
    }

    /// Makes a link behind the implementation's back.
    pub fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.root.join(path)).expect("linked");
    }

    /// Makes a FIFO behind the implementation's back.
    pub fn fifo(&self, path: &str) {
        let folder = std::fs::File::open(&self.root).expect("folder");
        rustix::fs::mkfifoat(folder, path, rustix::fs::Mode::RWXU).expect("made");
    }

    /// What is really in a file.
    pub fn content(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.root.join(path)).expect("readable")
    }

    /// Whether something is really there, links not followed.
    pub fn exists(&self, path: &str) -> bool {
        std::fs::symlink_metadata(self.root.join(path)).is_ok()
    }
}

/// A path that is known to parse.
pub fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).expect("a path")
}

/// A folder `outside` with a secret beside the workspace folder `inside`.
pub fn local() -> Subject {
    let keep = tempfile::tempdir().expect("folder");
    let root = keep.path().join("inside");
    std::fs::create_dir(&root).expect("folder");
    std::fs::create_dir(keep.path().join("outside")).expect("folder");
    std::fs::write(keep.path().join("outside/secret"), "secret!").expect("written");
    let workspace = Arc::new(LocalWorkspace::open(Path::new(&root), "/workspace").expect("opened"));
    Subject { workspace, root, keep }
}

/// One test per case; `$make` is a function that makes a `Subject`.
macro_rules! workspace_conformance {
    ($make:path) => {
        workspace_conformance!(@cases $make, reading: [
            a_file_is_read_with_size_time_and_a_validator_of_its_content,
            validators_follow_the_content_and_only_it_for_small_files,
            a_large_file_changes_its_validator_when_it_is_written,
            a_file_over_the_bound_is_refused_with_its_size,
            streams_give_the_whole_or_a_range,
            directories_missing_files_and_files_as_directories_are_told_apart,
            listings_are_sorted_with_directories_first_and_marks,
            names_of_every_kind_come_back_as_they_are,
            ten_thousand_files_are_listed_whole,
            a_fifo_is_shown_and_never_opened,
        ]);
        workspace_conformance!(@cases $make, writing: [
            a_new_file_is_made_and_an_old_one_replaced_with_its_mode_kept,
            missing_directories_are_made_only_when_asked,
            a_precondition_that_fails_changes_nothing_and_tells_what_is_there,
            of_two_writers_with_one_precondition_exactly_one_wins,
            concurrent_updates_of_one_file_lose_nothing,
            an_update_that_refuses_changes_nothing,
            a_stream_that_breaks_off_or_is_too_long_leaves_no_trace,
            a_stream_of_megabytes_arrives_whole,
            readers_see_the_old_or_the_new_content_and_nothing_between,
            what_cannot_be_replaced_is_refused,
            a_link_at_the_end_is_written_through_when_it_stays_inside,
            directories_made_for_a_write_that_fails_are_gone_again,
        ]);
        workspace_conformance!(@cases $make, change: [
            files_links_and_empty_directories_are_removed,
            a_directory_with_entries_needs_recursive,
            the_root_is_never_removed_moved_or_replaced,
            a_rename_refuses_an_existing_target_unless_told,
            a_directory_is_not_moved_into_itself,
            of_two_renames_to_one_target_exactly_one_wins,
            directories_are_made_one_by_one_or_with_their_parents,
        ]);
        workspace_conformance!(@cases $make, confinement: [
            links_that_lead_outside_are_refused_by_every_operation,
            removal_and_renaming_never_go_through_links,
            a_removed_link_leaves_its_target_alone,
            links_that_stay_inside_are_followed,
            loops_and_dangling_links_end_in_an_error,
            walks_and_searches_do_not_follow_links,
            a_directory_swapped_for_a_link_never_shows_what_is_outside,
            a_tree_whose_parts_are_swapped_for_links_is_removed_without_touching_the_outside,
        ]);
        workspace_conformance!(@cases $make, changes: [
            changes_made_here_and_by_others_are_told_once_each_in_order,
            what_lies_outside_is_never_told_however_directories_are_swapped,
            writes_are_held_until_the_hold_ends,
        ]);
        workspace_conformance!(@cases $make, searching: [
            walks_are_sorted_and_respect_ignore_rules,
            a_walk_can_be_continued_where_it_was_cut,
            globs_words_depth_and_hidden_names_select,
            patterns_that_do_not_parse_are_told,
            grep_finds_lines_and_skips_binary_and_ignored_files,
            grep_gives_context_and_says_when_it_was_cut,
            long_lines_are_cut_with_a_mark,
            a_cancelled_search_ends_soon,
        ]);
    };
    (@cases $make:path, $module:ident: [$($case:ident),* $(,)?]) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let subject = $make();
                let case = super::$module::$case(&subject);
                // A case that hangs is a case that fails: opening a FIFO, following a loop.
                tokio::time::timeout(std::time::Duration::from_secs(30), case).await.expect("the case hangs");
            }
        )*
    };
}
pub(crate) use workspace_conformance;

mod local_workspace {
    super::workspace_conformance!(super::local);
}
