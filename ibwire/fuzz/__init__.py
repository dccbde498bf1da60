"""Stateful fuzzing of RDMA devices, with the emulator as the reference.

    from ibwire.fuzz import Campaign, Role, target, vocabulary_for

    make = vocabulary_for(Role.BOTH).generators(1, Role.BOTH, ())
    campaign = Campaign(target("emu:rxe").testbed(Role.BOTH), make)
    for finding in campaign.run(20_000):
        print(finding.bucket)

A case is a connection and symbolic steps. A generator makes it step by step while it watches
the reference; a comparison executes each step on the reference and on the device under
test; the campaign judges the differences. A campaign combines two objects: the **target** says
where frames go and whether the device is alive, the **vocabulary** what a case is made of.

Which file to open, to change

- an operator: its row in `vocabulary/operators.py`; its function in `request_operators.py` or
  `response_mutators.py` of `vocabulary/queue_pair/`, or in `vocabulary/cm/operators.py`
- a choice, which the specification leaves open, or a known deviation: `judge/choices.py`
- a step of a case: `case.py`; a case as a file: `saved.py`, and `script.py` and `reading.py` of
  `vocabulary/queue_pair/`; its frame: `vocabulary/binding.py` and the
  `encoding.py` of `vocabulary/queue_pair/` or `vocabulary/cm/`
- valid traffic: `traffic.py` of `vocabulary/queue_pair/` or `vocabulary/cm/`
- a target: `targets/testbed.py` has the protocols; `targets/emulator.py` and `targets/link/`
- what is compared: `judge/comparison.py`; on a link `comparison.py` of a vocabulary
- names and rules of findings: `judge/findings.py`; on a link `judge/response_names.py` and
  `vocabulary/cm/names.py`
- the drill script of a finding: `script.py` of a vocabulary
- a run: `campaign.py` and `report.py`; `run_file.py` for `run.json`, `prefetch.py` for `--jobs`
- how a case is minimised: `minimise.py`; one that crashes a device on a link:
  `targets/link/crash_minimiser.py`
- the files of a finding: `artefacts.py`, `saved.py`, `recording.py`, `report_text.py`
"""

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, Connection, Role, from_json, to_json
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.report import Report
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for

__all__ = [
    "Campaign",
    "Case",
    "CaseError",
    "Connection",
    "Finding",
    "Report",
    "Role",
    "from_json",
    "target",
    "to_json",
    "vocabulary_for",
]
