"""A stand-in for rlbench.observation_config."""

from __future__ import annotations

from pyrep.const import RenderMode

_CAMERAS = ("left_shoulder_camera", "right_shoulder_camera", "overhead_camera", "wrist_camera", "front_camera")


class Identity:
    """No noise."""

    def __repr__(self):
        return "Identity()"


class CameraConfig:
    def __init__(
        self,
        rgb=True,
        rgb_noise=Identity(),
        depth=True,
        depth_noise=Identity(),
        point_cloud=True,
        mask=True,
        image_size=(128, 128),
        render_mode=RenderMode.OPENGL3,
        masks_as_one_channel=True,
        depth_in_meters=False,
    ):
        self.image_size = image_size
        self.render_mode = render_mode
        self.rgb, self.depth, self.point_cloud, self.mask = rgb, depth, point_cloud, mask

    def set_all(self, value):
        self.rgb = self.depth = self.point_cloud = self.mask = value


class ObservationConfig:
    def __init__(
        self,
        left_shoulder_camera=None,
        right_shoulder_camera=None,
        overhead_camera=None,
        wrist_camera=None,
        front_camera=None,
        joint_velocities=True,
        joint_velocities_noise=Identity(),
        joint_positions=True,
        joint_positions_noise=Identity(),
        joint_forces=True,
        joint_forces_noise=Identity(),
        gripper_open=True,
        gripper_pose=True,
        gripper_matrix=False,
        gripper_joint_positions=False,
        gripper_touch_forces=False,
        wrist_camera_matrix=False,
        record_gripper_closing=False,
        task_low_dim_state=False,
    ):
        given = dict(locals())
        for name in _CAMERAS:
            setattr(self, name, CameraConfig() if given[name] is None else given[name])
        self.joint_velocities, self.joint_positions, self.joint_forces = joint_velocities, joint_positions, joint_forces
        self.gripper_open, self.gripper_pose, self.gripper_matrix = gripper_open, gripper_pose, gripper_matrix
        self.gripper_joint_positions, self.gripper_touch_forces = gripper_joint_positions, gripper_touch_forces
        self.wrist_camera_matrix, self.task_low_dim_state = wrist_camera_matrix, task_low_dim_state

    def set_all(self, value):
        self.set_all_high_dim(value)
        self.set_all_low_dim(value)

    def set_all_high_dim(self, value):
        for name in _CAMERAS:
            getattr(self, name).set_all(value)

    def set_all_low_dim(self, value):
        self.joint_velocities = self.joint_positions = self.joint_forces = value
        self.gripper_open = self.gripper_pose = self.gripper_matrix = value
        self.gripper_joint_positions = self.gripper_touch_forces = value
        self.wrist_camera_matrix = self.task_low_dim_state = value
