"""Tests that each line of the threat model has tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "threat-model.md"
# The tests of each line of the page, as FILE::TEST.
HELD = {
    "T1": ("tests/integration/test_isolation.py::test_every_escape_attempt_of_a_hostile_source_fails",
           "tests/integration/test_isolation.py::test_successful_probe_is_recorded_and_not_repeated",
           "tests/integration/test_limits.py::test_build_that_exceeds_a_limit_is_stopped",
           "tests/integration/test_docker_runner.py::test_container_that_exceeds_a_limit_is_stopped"),
    "T2": (
        "tests/integration/test_hostile_cache.py::test_hostile_build_does_not_change_the_bytes_of_a_build_of_another_tree",
        "tests/integration/test_hostile_kernels.py::test_kernels_of_honest_tree_contain_no_hostile_bytes",
    ),
    "T3": ("tests/unit/test_unpack.py::test_hostile_archive_is_refused",
           "tests/unit/test_unpack.py::test_archive_above_the_limit_of_bytes_or_files_is_refused",
           "tests/unit/test_zips.py::test_conflicting_or_too_long_names_are_refused",
           "tests/unit/test_aks2.py::test_overlapping_kernels_are_refused",
           "lab/tests/unit/test_wheel_llvm.py::test_hostile_wheel_is_refused",
           "lab/tests/unit/test_audit.py::test_code_of_a_wheel_does_not_run_on_the_host",
           "tests/unit/test_bundle_hostile.py::test_bundle_with_invalid_missing_or_unlocked_entries_is_refused"),
    "T4": ("tests/unit/test_patch.py::test_patch_that_leaves_the_tree_or_does_not_apply_is_refused",
           "tests/unit/test_patch.py::test_patch_that_writes_through_a_link_is_refused",
           "tests/unit/test_patch.py::test_binary_patch_that_states_a_huge_size_is_refused"),
    "T5": ("tests/unit/test_git.py::test_object_that_differs_from_its_git_id_is_refused",
           "tests/unit/test_pypi.py::test_file_with_another_digest_is_refused"),
    "T6": ("tests/unit/test_local.py::test_programs_that_a_checkout_configures_do_not_run",
           "tests/unit/test_host_programs.py::test_missing_object_of_a_partial_clone_is_not_fetched"),
    "T7": ("tests/unit/test_pace.py::test_slow_manifest_is_refused_without_a_retry",
           "tests/unit/test_deadline.py::test_timeout_limits_the_whole_time_of_verify",
           "tests/unit/test_layout_check.py::test_layers_that_together_unpack_above_the_limit_are_a_fault",
           "tests/unit/test_deadline.py::test_blob_larger_than_the_free_space_is_not_requested"),
    "T8": ("tests/unit/test_transport.py::test_store_behind_a_redirect_does_not_get_the_login",
           "tests/unit/test_odd_answers.py::test_redirect_keeps_the_login_only_on_the_same_host",
           "tests/unit/test_pace.py::test_redirect_from_https_to_http_is_refused"),
    "T9": ("tests/unit/test_filesystem.py::test_publish_does_not_follow_links",
           "tests/unit/test_filesystem.py::test_layout_file_that_is_not_regular_is_refused",
           "tests/unit/test_one_reading.py::test_layout_is_trusted_only_if_it_is_unambiguous"),
    "T10": ("tests/unit/test_found_file.py::test_found_file_with_a_forbidden_key_is_refused_with_its_name",
            "tests/unit/test_pypi.py::test_pip_runs_no_code_of_the_current_folder",
            "lab/tests/unit/test_audit.py::test_current_folder_is_not_imported_and_is_hidden_from_the_compiler",
            "tests/unit/test_found_file.py::test_found_file_with_an_unrecorded_value_is_refused",
            "tests/unit/test_found_file.py::test_config_file_of_a_parent_folder_is_not_read",
            "tests/unit/test_asked.py::test_pin_in_the_current_folder_is_used_only_if_it_is_named",
            "tests/unit/test_asked.py::test_checkout_in_the_current_folder_is_built_only_if_it_is_named"),
    "T11": ("tests/unit/test_found_file.py::test_empty_variable_that_would_skip_a_check_is_refused",),
    "T12": ("tests/unit/test_verify.py::test_statements_about_another_image_are_refused",
            "tests/unit/test_verify.py::test_both_images_of_an_index_must_be_signed"),
    "T13": ("tests/integration/test_isolation.py::test_every_escape_attempt_of_a_hostile_source_fails",),
    "T14": ("tests/unit/test_kernel_store.py::test_only_results_signed_by_the_given_key_are_taken",
            "tests/unit/test_kernel_store_options.py::test_note_is_printed_for_a_store_without_a_key"),
    "T15": ("tests/integration/test_isolation.py::test_probe_reports_network_of_the_host",
            "tests/integration/test_isolation.py::test_every_escape_attempt_of_a_hostile_source_fails",
            "tests/unit/test_file_sets.py::test_compile_process_gets_only_the_named_variables_and_files",
            "tests/unit/test_file_sets.py::test_process_serves_one_set_of_files_and_has_a_separate_folder"),
    "T16": ("tests/unit/test_cluster.py::test_scheduler_without_tls_outside_of_loopback_is_refused",
            "tests/integration/test_cluster.py::test_scheduler_accepts_only_tls_certificates_of_its_authority"),
    "T17": ("tests/unit/test_verify_provenance.py::test_source_only_refuses_prebuilt_inputs_that_are_not_allowed",
            "tests/unit/test_intake.py::test_libdevice_is_allowed_by_name_and_amd_bitcode_replaced_by_default"),
    "T18": ("tests/integration/test_isolation.py::test_probe_reports_user_ids_of_the_caller",),
    "T19": ("tests/unit/test_console.py::test_control_characters_are_escaped_in_text_output",),
    "T20": ("tests/unit/test_verify_provenance.py::test_image_too_old_or_from_the_future_is_refused",),
    "T21": ("tests/unit/test_private.py::test_other_user_cannot_read_a_private_tree_in_the_store",
            "tests/unit/test_private.py::test_existing_cache_is_made_private"),
}  # fmt: skip


def test_every_line_of_the_page_has_existing_tests() -> None:
    lines = re.findall(r"^\| (T[0-9]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines == list(HELD), "each line of the page has its tests here, in the same order"
    there: dict[str, set[str]] = {}
    for name in {test.partition("::")[0] for tests in HELD.values() for test in tests}:
        tree = ast.parse((TOP / name).read_text(encoding="utf-8"))
        there[name] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    gone = [
        test
        for tests in HELD.values()
        for test in tests
        if test.partition("::")[2] not in there[test.partition("::")[0]]
    ]
    assert gone == []
    assert all(HELD.values())


def test_page_names_only_existing_test_files() -> None:
    named = set(re.findall(r"`(tests/[a-z_/]+\.py)`", PAGE.read_text(encoding="utf-8")))
    assert named
    assert [name for name in named if not (TOP / name).is_file()] == []
