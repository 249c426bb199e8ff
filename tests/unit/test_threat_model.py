"""Tests that each line of the threat model has tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PAGE = TOP / "docs" / "threat-model.md"
# The tests of each line of the page, as FILE::TEST.
HELD = {
    "T1": ("tests/integration/test_isolation.py::test_a_hostile_source_gets_nothing",
           "tests/integration/test_isolation.py::test_nothing_gets_out_and_that_is_remembered",
           "tests/integration/test_limits.py::test_a_build_is_ended_at_a_limit",
           "tests/integration/test_docker_runner.py::test_a_container_is_ended_at_a_limit"),
    "T2": (
        "tests/integration/test_hostile_cache.py::test_a_build_of_another_tree_has_the_bytes_that_an_empty_cache_gives",
        "tests/integration/test_hostile_kernels.py::test_an_honest_tree_gets_no_byte_of_a_hostile_one",
    ),
    "T3": ("tests/unit/test_unpack.py::test_hostile", "tests/unit/test_unpack.py::test_bomb",
           "tests/unit/test_zips.py::test_names_that_lead_to_one_place_or_none_are_refused",
           "tests/unit/test_aks2.py::test_kernels_over_the_same_bytes_are_refused",
           "lab/tests/unit/test_wheel_llvm.py::test_a_hostile_wheel_is_refused",
           "lab/tests/unit/test_audit.py::test_a_wheel_runs_nothing_on_the_host",
           "tests/unit/test_bundle_hostile.py::test_what_does_not_belong_is_refused"),
    "T4": ("tests/unit/test_patch.py::test_refused", "tests/unit/test_patch.py::test_write_through_a_link",
           "tests/unit/test_patch.py::test_a_patch_that_unpacks_to_gigabytes_is_refused"),
    "T5": ("tests/unit/test_git.py::test_a_server_cannot_give_another_tree",
           "tests/unit/test_pypi.py::test_wrong_digest"),
    "T6": ("tests/unit/test_local.py::test_nothing_that_a_checkout_configures_is_run",
           "tests/unit/test_host_programs.py::test_a_checkout_fetches_nothing_when_it_is_asked_for_a_commit"),
    "T7": ("tests/unit/test_pace.py::test_a_manifest_that_trickles",
           "tests/unit/test_deadline.py::test_verify_as_a_whole",
           "tests/unit/test_layout_check.py::test_many_layers_that_unpack_to_much_are_not_unpacked_all",
           "tests/unit/test_deadline.py::test_a_blob_that_does_not_fit_is_not_asked_for"),
    "T8": ("tests/unit/test_transport.py::test_a_store_elsewhere_cannot_ask_for_the_login",
           "tests/unit/test_odd_answers.py::test_a_redirect_takes_the_login_along_on_the_same_host_alone",
           "tests/unit/test_pace.py::test_no_redirect_leaves_https"),
    "T9": ("tests/unit/test_filesystem.py::test_publishing_follows_no_links",
           "tests/unit/test_filesystem.py::test_a_layout_is_read_from_regular_files_alone",
           "tests/unit/test_one_reading.py::test_an_ambiguous_folder_is_not_trusted"),
    "T10": ("tests/unit/test_found_file.py::test_a_found_file_with_any_other_key_is_refused_by_name",
            "tests/unit/test_pypi.py::test_pip_runs_no_code_of_the_current_folder",
            "lab/tests/unit/test_audit.py::test_the_current_folder_is_no_triton_and_not_shown",
            "tests/unit/test_found_file.py::test_a_found_file_names_only_versions_on_record",
            "tests/unit/test_found_file.py::test_no_file_of_a_folder_above_is_read",
            "tests/unit/test_asked.py::test_a_pin_that_lies_here_is_used_when_it_is_named_and_only_then",
            "tests/unit/test_asked.py::test_a_checkout_is_what_is_built_when_it_is_named_and_only_then"),
    "T11": ("tests/unit/test_found_file.py::test_an_empty_variable_skips_no_check",),
    "T12": ("tests/unit/test_verify.py::test_evidence_of_another_image",
            "tests/unit/test_verify.py::test_both_images_of_an_index_must_be_signed"),
    "T13": ("tests/integration/test_isolation.py::test_a_hostile_source_gets_nothing",),
    "T14": ("tests/unit/test_kernel_store.py::test_with_a_key_only_what_it_signed_counts",
            "tests/unit/test_kernel_store_options.py::test_a_store_without_a_key_is_told"),
    "T15": ("tests/integration/test_isolation.py::test_the_machine_s_network",
            "tests/integration/test_isolation.py::test_a_hostile_source_gets_nothing",
            "tests/unit/test_file_sets.py::test_a_compile_process_inherits_what_is_named_and_nothing_else",
            "tests/unit/test_file_sets.py::test_a_process_serves_one_set_and_has_a_folder_of_its_own"),
    "T16": ("tests/unit/test_cluster.py::test_a_scheduler_that_is_open_to_everyone_is_refused",
            "tests/integration/test_cluster.py::test_tls_takes_only_certificates_of_its_authority"),
    "T17": ("tests/unit/test_verify.py::test_prebuilt_things_need_a_name",
            "tests/unit/test_intake.py::test_allowed_by_name_and_replaced_by_default"),
    "T18": ("tests/integration/test_isolation.py::test_the_caller_s_own_ids",),
    "T19": ("tests/unit/test_console.py::test_names_of_strangers_do_not_steer_the_terminal",),
    "T20": ("tests/unit/test_verify.py::test_age",),
    "T21": ("tests/unit/test_private.py::test_a_private_tree_is_not_read_in_the_store",
            "tests/unit/test_private.py::test_an_existing_cache_becomes_private"),
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
