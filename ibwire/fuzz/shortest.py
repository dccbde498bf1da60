"""The shortest case of a single case, which is not part of a run."""

from __future__ import annotations

from dataclasses import replace

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, RunsAway
from ibwire.fuzz.judge.comparison import FATAL, Difference
from ibwire.fuzz.judge.profiles import conditions_of
from ibwire.fuzz.verdict import FEW
from ibwire.programs.endpoint import Interrupted
from ibwire.rc.profile import Profile


def shortest_alone(
    campaign: Campaign, case: Case, difference: Difference, profile: Profile
) -> tuple[Case, Profile, Difference | None]:
    """The shortest case found that is judged different again, with its reference and difference.

    profile, difference: of the case, as `Judge.judged_alone` returns them. A shorter case may show
    only what another choice allows: then the next one has to differ from that reference, too. If
    none does, it is the case itself. Without a difference, the case does not show it again.
    """
    search, others = campaign.state.search, [profile]
    own = conditions_of(profile, case.profile)
    try:
        while len(others) <= FEW:
            shortest = replace(campaign.judge.shortest(case, difference, profile), choices=own)
            if difference.kind in FATAL or campaign.lost:
                return shortest, profile, difference
            found, left = campaign.judge.judged_alone(shortest)
            if left is not None:
                return shortest, found, left
            if search.is_interrupted:
                break
            others.append(found)
            search.also = lambda shorter: campaign.judge.differs_from_all(shorter, others)
    except (CaseError, RunsAway):
        pass  # with another choice the reference does not come to rest in it
    except (KeyboardInterrupt, Interrupted):
        search.is_interrupted = True
        return case, profile, difference
    finally:
        search.also = None
    return case, *campaign.judge.judged_alone(case)
