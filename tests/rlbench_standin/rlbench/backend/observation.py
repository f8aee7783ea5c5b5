"""A stand-in for rlbench.backend.observation."""


class Observation:
    def __init__(
        self,
        left_shoulder_rgb,
        left_shoulder_depth,
        left_shoulder_mask,
        left_shoulder_point_cloud,
        right_shoulder_rgb,
        right_shoulder_depth,
        right_shoulder_mask,
        right_shoulder_point_cloud,
        overhead_rgb,
        overhead_depth,
        overhead_mask,
        overhead_point_cloud,
        wrist_rgb,
        wrist_depth,
        wrist_mask,
        wrist_point_cloud,
        front_rgb,
        front_depth,
        front_mask,
        front_point_cloud,
        joint_velocities,
        joint_positions,
        joint_forces,
        gripper_open,
        gripper_pose,
        gripper_matrix,
        gripper_joint_positions,
        gripper_touch_forces,
        task_low_dim_state,
        misc,
    ):
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})
