"""Activities of BEHAVIOR-1K: the 50 of the challenge in words, all others by name, and where they are played."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
from typing import Dict, List, Optional

from ..base import SpecError
from .releases import Release

#: The tasks of the 2025 challenge, in its order. The words are ours: a policy that was trained on others needs those
#: (`Options.descriptions`).
CHALLENGE: Dict[str, str] = {
    "turning_on_radio": "Switch on the radio on the living room table.",
    "picking_up_trash": "Throw the three soda cans on the living room floor into the trash can in the kitchen.",
    "putting_away_Halloween_decorations": (
        "Put the pumpkins and candles into living room cabinets, close the cabinets, and set the "
        "cauldron next to a table."
    ),
    "cleaning_up_plates_and_food": (
        "Put the two pizzas on their plates into the refrigerator and the bowls into the sink."
    ),
    "can_meat": "Fill the two jars with two bratwursts each, close them and put them into the kitchen cabinet.",
    "setting_mousetraps": "Set the four mousetraps on the bathroom floor.",
    "hiding_Easter_eggs": "Take the three Easter eggs out of the basket and hide them next to a tree in the garden.",
    "picking_up_toys": "Put the board games, the jigsaw puzzles and the tennis ball into the toy box.",
    "rearranging_kitchen_furniture": (
        "Put the toaster, the food processor and the French press into a kitchen cabinet and close it."
    ),
    "putting_up_Christmas_decorations_inside": (
        "Decorate for Christmas: lay out the wreath, candy canes and candles, and put the gift boxes by the tree."
    ),
    "set_up_a_coffee_station_in_your_kitchen": "Set up a coffee station on the kitchen countertop.",
    "putting_dishes_away_after_cleaning": "Put all eight plates from the countertops into a kitchen cabinet.",
    "preparing_lunch_box": "Pack the apple halves, the sandwich, the cookie and the bottle of tea into the box.",
    "loading_the_car": "Put the camera into the container, and load the container and the tennis racket into the car.",
    "carrying_in_groceries": (
        "Carry the groceries in from the car, put the tomato and the milk into the refrigerator, "
        "and close car and refrigerator."
    ),
    "bringing_in_wood": "Bring the three sheets of plywood from the garden into the corridor.",
    "moving_boxes_to_storage": "Move the two storage containers into the garage and stack them.",
    "bringing_water": "Bring the two bottles from the refrigerator to the coffee table, and close the refrigerator.",
    "tidying_bedroom": "Put the sandals next to the bed and the book on a nightstand.",
    "outfit_a_basic_toolbox": (
        "Put the drill, the pliers, the flashlight, the Allen wrench and the screwdriver into the toolbox and close it."
    ),
    "sorting_vegetables": "Sort the vegetables from the baskets into the mixing bowls by kind.",
    "collecting_childrens_toys": "Put the dice, the teddy bears, the board games and the train set into a bookcase.",
    "putting_shoes_on_rack": "Put the gym shoes and the sandals from the corridor floor onto the rack.",
    "boxing_books_up_for_storage": "Pack the six books from the bookcases into the box.",
    "storing_food": "Store the oatmeal, the chips, the olive oil and the sugar in kitchen cabinets.",
    "clearing_food_from_table_into_fridge": (
        "Pack the half chicken and the half apple pie into containers and put these into the refrigerator."
    ),
    "assembling_gift_baskets": (
        "Put one candle, one cookie, one piece of cheese and one bow into each of the four baskets."
    ),
    "sorting_household_items": "Sort the things in the two baskets into their places in the bathroom.",
    "getting_organized_for_work": (
        "Arrange computer, monitor, keyboard, mouse, notebook, folder and pen at the desk for work."
    ),
    "clean_up_your_desk": (
        "Put folders and books into the bookcase, pens and pencil into their box, and the closed laptop onto the desk."
    ),
    "setting_the_fire": "Lay newspaper and firewood in the fireplace and light them with the lighter.",
    "clean_boxing_gloves": "Wash the dust off the two boxing gloves in the washer.",
    "wash_a_baseball_cap": "Wash the two baseball caps in the washer until they are clean.",
    "wash_dog_toys": "Wash the two teddies, the tennis ball and the softball until they are clean.",
    "hanging_pictures": "Hang the poster on a nail in the kitchen wall.",
    "attach_a_camera_to_a_tripod": "Attach the camera to the tripod.",
    "clean_a_patio": "Sweep the mud off the patio with the broom.",
    "clean_a_trumpet": "Brush the dust off the cornet.",
    "spraying_for_bugs": "Spray the two potted plants in the garden with insect repellent.",
    "spraying_fruit_trees": "Spray the two trees in the garden with pesticide.",
    "make_microwave_popcorn": "Cook the bag of popcorn in the microwave.",
    "cook_cabbage": "Dice the cabbage and the chili and cook them in the frying pan.",
    "chop_an_onion": "Dice the onion from the sink, put it into the bowl, and rinse the knife and the board.",
    "slicing_vegetables": "Dice the peppers, the beets and the zucchini from the refrigerator on the chopping board.",
    "chopping_wood": "Chop the four logs in halves with the ax.",
    "cook_hot_dogs": "Cook the two hot dogs from the refrigerator.",
    "cook_bacon": "Cook the six slices of bacon in the frying pan.",
    "freeze_pies": "Put each apple pie into a container of its own, and freeze both in the refrigerator.",
    "canning_food": (
        "Dice the steak and the pineapple, put each into a bowl of its own, and store the bowls in the cabinet."
    ),
    "make_pizza": "Put cheese, pepperoni and mushrooms onto the dough and bake a pizza.",
}


def activities() -> List[str]:
    """Return the names of all activities that the installed bddl defines."""
    spec = importlib.util.find_spec("bddl")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        definitions = os.path.join(folder, "activity_definitions")
        if os.path.isdir(definitions):
            names = os.listdir(definitions)
            return sorted(name for name in names if os.path.isdir(os.path.join(definitions, name)))
    return []


def description_of(activity: str, path: Optional[str]) -> str:
    """Return an activity in words: those of a file, ours, or its name."""
    if path is not None:
        with open(path, encoding="utf-8") as lines:
            told = [json.loads(line) for line in lines if line.strip()]
        found = [each["task"] for each in told if each.get("task_name") == activity]
        if not found:
            raise SpecError('%s has no line with "task_name": "%s"' % (path, activity))
        return found[0]
    return CHALLENGE.get(activity) or activity.replace("_", " ")


def scene_of(data: str, release: Release, activity: str, definition: int) -> str:
    """Return the house that an activity's instances are made for."""
    name = "*_task_%s_%d_0_template.json" % (activity, definition)
    scenes = os.path.join(glob.escape(os.path.join(data, release.dataset)), "scenes", "*")
    found = glob.glob(os.path.join(scenes, "json", name))
    found += glob.glob(os.path.join(scenes, "json", "*_task_%s_instances" % activity))
    if found:
        return os.path.basename(os.path.dirname(os.path.dirname(sorted(found)[0])))
    raise SpecError(
        "no scene in %s has the activity %s (definition %d): scripts/install_behavior.sh downloads those of the "
        "challenge; else name a house and have its objects placed: scene_model='house_single_floor', "
        "online_object_sampling=True" % (data, activity, definition)
    )
